#include "executor/weights/load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto d : shape) n *= d;
  return n;
}

std::string dims(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string expert_name(std::string name, std::int64_t expert) {
  if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(expert));
  return name;
}

/// The routed experts of a layer, if it has any.
const MoeFfn* experts_of(const ModelSpec& model, std::int32_t layer) {
  if (layer < 0) return nullptr;
  for (const Sublayer& s : model.layers[static_cast<std::size_t>(layer)].sublayers)
    if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) return f;
  return nullptr;
}

/// The tensors of the file that hold one source, with what the header must say.
std::vector<FileTensor> in_file(const TensorSource& s, const std::string& name, PackedLayout layout) {
  return file_tensors({.name = name, .shape = s.shape, .count = 1, .dtype = s.dtype}, layout);
}

/// A tensor whose stored type is another than the config's (a plain copy of a quantised model): read as what it is.
bool is_plain(const StoredTensor& t) { return t.dtype == "BF16" || t.dtype == "F16" || t.dtype == "F32" || t.dtype == "F64" || t.dtype == "I32" || t.dtype == "I64"; }

/// Dimensions of one say nothing: A_log is [1, 1, heads, 1] in Kimi-Linear's file.
std::vector<std::int64_t> squeezed(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> out;
  for (const auto d : shape) if (d != 1) out.push_back(d);
  return out;
}

/// Gated DeltaNet with one projection for q, k, v and z has them by key head, and so its convolution's channels here; the file has all q, all
/// k, all v. The row of the file for each row of ours; empty where they are the same.
std::vector<std::int64_t> convolution_rows(const ModelSpec& model, const Parameter& p) {
  if (p.layer < 0 || !p.name.ends_with("conv1d.weight")) return {};
  for (const Sublayer& s : model.layers[static_cast<std::size_t>(p.layer)].sublayers) {
    const auto* a = std::get_if<GdnAttention>(&s.mixer);
    if (!a || a->split_projections) continue;
    const std::int64_t share = a->v_heads / a->k_heads * a->v_dim, keys = a->k_heads * a->k_dim;
    std::vector<std::int64_t> rows;
    for (std::int64_t h = 0; h < a->k_heads; ++h) {
      for (std::int64_t c = 0; c < a->k_dim; ++c) rows.push_back(h * a->k_dim + c);
      for (std::int64_t c = 0; c < a->k_dim; ++c) rows.push_back(keys + h * a->k_dim + c);
      for (std::int64_t c = 0; c < share; ++c) rows.push_back(2 * keys + h * share + c);
    }
    return rows;
  }
  return {};
}

/// MXFP4 payload of `columns` values a row, two to a byte, low nibble first, with a power of two for each 32.
std::vector<float> mxfp4(const TensorFiles& files, const std::string& payload, const std::string& scales, std::int64_t columns, std::int64_t begin, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  const std::int64_t first = begin / columns, last = (begin + count + columns - 1) / columns, groups = (columns + 31) / 32, packed = (columns + 1) / 2;
  const auto codes = files.bytes(payload, first * packed, last * packed), powers = files.bytes(scales, first * groups, last * groups);
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const std::int64_t row = i / columns - first, c = i % columns;
    const auto byte = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(row * packed + c / 2)]);
    out[static_cast<std::size_t>(i - begin)] = from_e2m1(c % 2 ? byte >> 4 : byte & 15) * from_e8m0(static_cast<std::uint8_t>(powers[static_cast<std::size_t>(row * groups + c / 32)]));
  }
  return out;
}

}  // namespace

std::vector<float> stored_values(const TensorFiles& files, const std::string& name, const std::vector<std::int64_t>& shape, DType type, PackedLayout layout, std::int64_t begin, std::int64_t count) {
  const StoredTensor* direct = files.find(name);
  const auto parts = file_tensors({.name = name, .shape = shape, .count = 1, .dtype = type}, layout);
  if ((direct && is_plain(*direct)) || parts.size() == 1) return files.floats(name, begin, count);
  if (type == DType::mxfp4) return mxfp4(files, parts[0].name, parts[1].name, layout == PackedLayout::blocks_scales && shape.size() == 3 ? shape[1] : shape.back(), begin, count);
  if (type == DType::fp8 && shape.size() == 2) {
    std::vector<float> out = files.floats(name, begin, count);
    const std::int64_t columns = shape[1];
    const bool by_row = layout == PackedLayout::compressed_tensors;
    const std::vector<float> scales = files.floats(parts[1].name, 0, product(parts[1].shape));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (begin + i) / columns, c = (begin + i) % columns;
      out[static_cast<std::size_t>(i)] *= scales[static_cast<std::size_t>(by_row ? row : row / 128 * ((columns + 127) / 128) + c / 128)];
    }
    return out;
  }
  throw InputError(files.where(), fmt::format("tensor {} is stored as {}", shown(name), name_of(type)), "bf16, f16, f32, fp8 and mxfp4 are read");
}

namespace {

/// Frequencies are computed plain or by the scalings of kernels/rope/frequencies.hpp; a checkpoint that was trained with others would give other numbers without a word.
void refuse_other_frequencies(const ModelSpec& model) {
  const std::set<std::string> computed{"", "linear", "yarn", "llama3", "longrope"};
  for (std::size_t l = 0; l < model.layers.size(); ++l)
    for (const Sublayer& s : model.layers[l].sublayers)
      std::visit([&](const auto& mixer) {
        if constexpr (requires { mixer.rope.scaling; })
          if (mixer.rope.enabled && !computed.contains(mixer.rope.scaling))
            throw InputError("rope_scaling", fmt::format("{} in layer {} is priced, not computed: these weights would be run with other rotations", shown(mixer.rope.scaling), l),
                             "a model with plain rotations, linear, yarn, llama3 or longrope; random weights run");
      }, s.mixer);
}

/// A weight that is held as the file stores it, byte for byte: payload and scales of its matrices, those of this rank's experts. Empty where the file has
/// another type, or layout of scales, than the memory.
std::vector<std::byte> as_stored(const TensorFiles& files, const ModelSpec& model, const Parameter& p, const RankPlace& place, std::int64_t slabs) {
  const Shape& shape = p.shape;
  if (plain_bytes(p.held) != 0 || shape.rank < 2) return {};
  const auto runs = held_runs(p.cut(), place);
  const std::int64_t columns = shape[shape.rank - 1], matrix = p.whole.elements() / slabs;
  if (runs.size() != 1 || runs.front().at % matrix != 0 || runs.front().count != shape.elements()) return {};
  const std::int64_t first = runs.front().at / matrix, end = first + runs.front().count / matrix;
  std::vector<std::byte> payload, scales;
  for (std::int64_t e = first; e < end; ++e)
    for (const TensorSource& s : p.sources) {
      const std::string name = expert_name(s.name, e);
      const StoredTensor* direct = files.find(name);
      const auto parts = in_file(s, name, model.stored.layout);
      const bool turned = model.stored.layout == PackedLayout::blocks_scales && s.shape.size() == 3;   // [E, in, out] here, rows of `in` in the file
      if (s.dtype != p.held || s.padding != 0 || parts.size() != 2 || (direct && is_plain(*direct)) || (turned ? s.shape[1] : s.shape.back()) != columns || (turned && columns % 32 != 0)) return {};
      const std::int64_t whole = product(s.shape), part = s.count > 1 ? whole : whole / slabs, rows = part / columns, row = s.count > 1 ? 0 : e * rows;
      const auto add = [](std::vector<std::byte>& to, std::span<const std::byte> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); };
      const std::int64_t wide = (columns + 1) / 2;
      if (p.held == DType::mxfp4) {
        const std::int64_t groups = (columns + 31) / 32;
        add(payload, files.bytes(parts[0].name, row * wide, (row + rows) * wide));
        add(scales, files.bytes(parts[1].name, row * groups, (row + rows) * groups));
      } else if (parts[1].dtype == "BF16" || rows % 128 != 0) {   // a scale a row; or blocks that end inside a weight of several
        if (parts[1].dtype == "BF16" || p.sources.size() > 1 || end - first > 1) return {};
        add(payload, files.bytes(parts[0].name, row * columns, (row + rows) * columns));
        const auto values = files.floats(parts[1].name, 0, product(parts[1].shape));
        add(scales, std::as_bytes(std::span(values)));
      } else {
        const std::int64_t across = (columns + 127) / 128;
        add(payload, files.bytes(parts[0].name, row * columns, (row + rows) * columns));
        const auto values = files.floats(parts[1].name, row / 128 * across, rows / 128 * across);
        add(scales, std::as_bytes(std::span(values)));
      }
    }
  payload.insert(payload.end(), scales.begin(), scales.end());
  if (static_cast<std::int64_t>(payload.size()) != stored_bytes(p.held, p.shape).value) throw std::logic_error(fmt::format("{}: {} stored bytes from its sources, {} in memory", p.name, payload.size(), stored_bytes(p.held, p.shape).value));
  return payload;
}

}  // namespace

void load_weights(const TensorFiles& files, const ModelSpec& model, Parameters& parameters, Backend& backend) {
  refuse_other_frequencies(model);
  std::vector<std::string> faults;
  // All headers first: a checkpoint that does not match is refused before a byte is loaded.
  for (const Parameter& p : parameters.all()) {
    if (p.adapter) continue;
    for (const TensorSource& s : p.sources)
      for (std::int64_t e = 0; e < s.count; ++e) {
        const std::string name = expert_name(s.name, e);
        const StoredTensor* direct = files.find(name);
        if (direct && is_plain(*direct)) {
          if (squeezed(direct->shape) != squeezed(s.shape)) faults.push_back(fmt::format("{} is {}, the model has {}", shown(name), dims(direct->shape), dims(s.shape)));
          continue;
        }
        for (const FileTensor& part : in_file(s, name, model.stored.layout)) {
          const StoredTensor* t = files.find(part.name);
          if (!t) faults.push_back(shown(part.name) + " is missing");
          else if (t->shape != part.shape) faults.push_back(fmt::format("{} is {}, the model has {}", shown(part.name), dims(t->shape), dims(part.shape)));
        }
      }
  }
  if (!faults.empty()) {
    const std::size_t shown_faults = std::min<std::size_t>(faults.size(), 10);
    throw InputError(files.where(), fmt::format("{} tensors differ from the config: {}{}", faults.size(), fmt::join(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(shown_faults), "; "), faults.size() > shown_faults ? "; ..." : ""),
                     "the weights of the model that the plan is for");
  }
  for (Parameter& p : parameters.all()) {
    if (p.adapter || p.sources.empty()) continue;
    const MoeFfn* moe = p.cls == WeightClass::experts ? experts_of(model, p.layer) : nullptr;
    const std::int64_t slabs = moe ? moe->experts : 1;
    if (const auto bytes = as_stored(files, model, p, parameters.place(), slabs); !bytes.empty()) {
      backend.write_stored(p.view(), bytes);
      continue;
    }
    std::vector<float> values;
    values.reserve(static_cast<std::size_t>(p.whole.elements()));
    for (std::int64_t e = 0; e < slabs; ++e)
      for (const TensorSource& s : p.sources) {
        const std::int64_t whole = product(s.shape), part = s.count > 1 ? whole : whole / slabs;
        const std::string name = expert_name(s.name, e);
        const std::int64_t used = std::min(part - s.padding, p.whole.elements());
        std::vector<float> slab = stored_values(files, name, s.shape, s.dtype, model.stored.layout, s.count > 1 ? 0 : e * part, used);
        const StoredTensor* direct = files.find(name);
        if (moe && moe->layout == ExpertLayout::fused_transposed && s.shape.size() == 3 && direct && is_plain(*direct)) {   // [in, out] in the file
          std::vector<float> turned(slab.size());
          const std::int64_t in = s.shape[1], out = s.shape[2];
          for (std::int64_t r = 0; r < in; ++r)
            for (std::int64_t c = 0; c < out; ++c) turned[static_cast<std::size_t>(c * in + r)] = slab[static_cast<std::size_t>(r * out + c)];
          slab = std::move(turned);
        }
        values.insert(values.end(), slab.begin(), slab.end());
      }
    if (static_cast<std::int64_t>(values.size()) != p.whole.elements()) throw std::logic_error(fmt::format("{}: {} values from its sources, {} elements", p.name, values.size(), p.whole.elements()));
    if (const auto rows = convolution_rows(model, p); !rows.empty()) {
      const std::vector<float> as_stored = values;
      const auto width = values.size() / rows.size();
      for (std::size_t r = 0; r < rows.size(); ++r) std::copy_n(as_stored.begin() + rows[r] * static_cast<std::ptrdiff_t>(width), width, values.begin() + static_cast<std::ptrdiff_t>(r * width));
    }
    set_from_whole(p, values, parameters.place(), backend);
  }
}

}  // namespace moeplan
