#include "core/checked.hpp"
#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan {
namespace {

void idle(Builder& b, WeightClass cls, const IdleTensor& t, const std::string& name, DType type, std::int64_t count) {
  std::int64_t elements = count;
  for (const auto d : t.shape) elements = checked_mul(elements, d, name.c_str());
  const TensorSource source{.name = name, .shape = t.shape, .count = count, .dtype = type};
  b.buffer(b.weight(cls, name, {elements}, WeightSplit::none, std::vector<TensorSource>{source}));
}

}  // namespace

void compose_idle(Builder& b, const ModelSpec& m) {
  for (const IdleTensor& t : m.vision) idle(b, WeightClass::vision, t, t.name, m.stored.base, t.count);
  for (std::size_t l = 0; l < m.layers.size(); ++l)
    for (const IdleTensor& t : m.layers[l].extra)
      idle(b, WeightClass::other, t, checkpoint_name(m, m.layer_prefix, static_cast<std::int64_t>(l), t.name), m.stored.base, t.count);
  for (std::size_t i = 0; i < m.mtp_layers.size(); ++i) {
    BlockContext context;
    context.sequence_length = context.tokens = b.context().sequence_length;
    Builder scratch("mtp", context);
    Stream stream = stream_inputs(scratch, m, static_cast<std::int64_t>(m.layers.size()));
    compose_layer(scratch, m, m.mtp_layers[i], stream);
    for (const Weight& w : scratch.take().weights) {
      if (w.adapter) continue;
      std::vector<TensorSource> sources = w.sources;
      for (TensorSource& s : sources) s.name = checkpoint_name(m, m.mtp_prefix, m.mtp_first + static_cast<std::int64_t>(i), s.name);
      const std::string name = sources.empty() ? w.name : sources.front().name;
      b.buffer(b.weight(WeightClass::mtp, name, w.full_shape, WeightSplit::none, std::move(sources)));
    }
  }
  for (const IdleTensor& t : m.mtp_extra) idle(b, WeightClass::mtp, t, t.name, m.stored.base, t.count);
  for (const IdleTensor& t : m.mtp_copies) idle(b, WeightClass::mtp, t, t.name, m.stored.base, t.count);
  for (const std::string& what : m.uncovered) b.uncovered(what);
}

}  // namespace moeplan
