/// Mixers over context ranks: what each kind exchanges.

#include <algorithm>

#include "sim/program/architectures/compose_parts.hpp"
#include "sim/program/program.hpp"

namespace moeplan::compose {

ValueId attend(Builder& b, op::Attention call, std::span<const ValueId> values, std::span<const WeightId> sinks) {
  const BlockContext& c = b.context();
  if (c.cp == 1) return b.call(call, values, sinks).front();
  if (c.context_exchange == ContextExchange::all_to_all) {
    std::vector<ValueId> whole;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool shared = call.shared_key > 0 && i == 2;   // one for all heads: every rank needs all of it
      whole.push_back(shared ? b.gather_context(values[i]) : b.heads_for_tokens(values[i]));
    }
    call.tokens *= c.cp;
    call.heads /= c.cp;
    call.kv_heads /= c.cp;
    return b.tokens_for_heads(b.call(call, whole, sinks).front());
  }
  if (call.window > 0 && call.window - 1 <= b.run()) {
    auto before = b.halo(values.subspan(1), call.window - 1);
    const ValueId y = b.call(call, values, sinks).front();
    b.reads_also(ContextWork::halo, std::move(before), 1);
    return y;
  }
  call.sequence_length = c.sequence_length / c.cp;
  const ValueId y = b.call(call, values, sinks).front();
  b.by_ring();
  return y;
}

ValueId scan(Builder& b, const Mixer& mixer, const Op& call, std::initializer_list<ValueId> values, std::initializer_list<WeightId> weights) {
  const StateFloats floats = state_floats(mixer, b.context().tp);
  auto before = b.pass_state(call, std::span(values.begin(), values.size()), std::span(weights.begin(), weights.size()), floats.transition, floats.state);
  const ValueId y = b.call(call, values, weights).front();
  b.reads_also(ContextWork::state, std::move(before));
  return y;
}

WeightId sink_weights(Builder& b, const std::string& name, std::int64_t heads, DType stored) {
  const WeightId w = small(b, name, {heads}, WeightSplit::column, stored);
  if (b.context().context_exchange == ContextExchange::all_to_all) b.hold_rows(w, local(b, heads) / b.context().cp);
  return w;
}

}  // namespace moeplan::compose
