#include "executor/weights/load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "executor/weights/stored_numbers.hpp"
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

/// A slab of [rows, columns] that the file has the other way round.
struct Turned {
  std::int64_t rows = 0, columns = 0;
};

/// Reads stretches of a slab, each to its place in `out`. Of a turned slab those of successive rows that take the same columns go together: they
/// are stretches of the file.
class SlabReader {
 public:
  SlabReader(StoredNumbers& numbers, std::int64_t base, std::optional<Turned> turned, std::vector<float>& out) : numbers_(numbers), base_(base), turned_(turned), out_(out) {}
  void add(std::int64_t begin, std::int64_t count, std::int64_t here) {
    if (!turned_) return numbers_.read(base_ + begin, place(here, count));
    while (count > 0) {
      const std::int64_t row = begin / turned_->columns, column = begin % turned_->columns, n = std::min(count, turned_->columns - column);
      const bool goes_on = pending_.rows > 0 && row == pending_.row + pending_.rows && column == pending_.column && n == pending_.columns && here == pending_.here + pending_.rows * n;
      if (!goes_on) finish(), pending_ = {.row = row, .column = column, .columns = n, .here = here};
      ++pending_.rows;
      begin += n, count -= n, here += n;
    }
  }
  void finish() {
    std::vector<float> line(static_cast<std::size_t>(pending_.rows));
    for (std::int64_t c = 0; c < pending_.columns && pending_.rows > 0; ++c) {
      numbers_.read(base_ + (pending_.column + c) * turned_->rows + pending_.row, line);
      for (std::int64_t r = 0; r < pending_.rows; ++r) out_[static_cast<std::size_t>(pending_.here + r * pending_.columns + c)] = line[static_cast<std::size_t>(r)];
    }
    pending_ = {};
  }

 private:
  struct Rectangle {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0, here = 0;
  };
  std::span<float> place(std::int64_t here, std::int64_t count) { return std::span(out_).subspan(static_cast<std::size_t>(here), static_cast<std::size_t>(count)); }
  StoredNumbers& numbers_;
  std::int64_t base_;
  std::optional<Turned> turned_;
  std::vector<float>& out_;
  Rectangle pending_;
};

/// What this rank holds of a weight, in the order of its file.
std::vector<ElementRun> runs_in_file(const ModelSpec& model, const Parameter& p, const RankPlace& place) {
  std::vector<ElementRun> runs = held_runs(p.cut(), place);
  if (const auto rows = convolution_rows(model, p); !rows.empty()) {
    const std::int64_t width = p.whole.elements() / static_cast<std::int64_t>(rows.size());
    std::vector<ElementRun> by_row;
    for (const ElementRun& run : runs)
      for (std::int64_t done = 0; done < run.count;) {
        const std::int64_t at = run.at + done, n = std::min(run.count - done, width - at % width);
        by_row.push_back({rows[static_cast<std::size_t>(at / width)] * width + at % width, n, run.here + done});
        done += n;
      }
    runs = std::move(by_row);
  }
  std::sort(runs.begin(), runs.end(), [](const ElementRun& a, const ElementRun& b) { return a.at < b.at; });
  return runs;
}

/// The elements that this rank holds of a weight; of the others nothing is read. A weight is its sources one after the other, expert by expert.
std::vector<float> cut_values(const TensorFiles& files, const ModelSpec& model, const Parameter& p, const RankPlace& place, std::int64_t slabs, std::int64_t& read) {
  const MoeFfn* moe = p.cls == WeightClass::experts ? experts_of(model, p.layer) : nullptr;
  std::vector<float> out(static_cast<std::size_t>(p.held_shape().elements()), 0.0f);
  const std::vector<ElementRun> runs = runs_in_file(model, p, place);
  auto next = runs.begin();
  std::int64_t begin = 0;   // of the slab
  for (std::int64_t e = 0; e < slabs; ++e)
    for (const TensorSource& s : p.sources) {
      const std::int64_t whole = product(s.shape), part = s.count > 1 ? whole : whole / slabs, end = begin + std::min(part - s.padding, p.whole.elements());
      if (next != runs.end() && next->at < end) {
        const std::string name = expert_name(s.name, e);
        StoredNumbers numbers(files, name, s.shape, s.dtype, model.stored.layout);
        const StoredTensor* direct = files.find(name);
        const bool turned = moe && moe->layout == ExpertLayout::fused_transposed && s.shape.size() == 3 && direct && is_plain(*direct);   // [in, out] in the file
        SlabReader slab(numbers, s.count > 1 ? 0 : e * part, turned ? std::optional(Turned{.rows = s.shape[2], .columns = s.shape[1]}) : std::nullopt, out);
        for (auto run = next; run != runs.end() && run->at < end; ++run) {
          const std::int64_t from = std::max(run->at, begin), until = std::min(run->at + run->count, end);
          slab.add(from - begin, until - from, run->here + from - run->at);
          if (run->at + run->count <= end) next = run + 1;
        }
        slab.finish();
        read += numbers.bytes_read();
      }
      begin = end;
    }
  if (begin != p.whole.elements()) throw std::logic_error(fmt::format("{}: {} values from its sources, {} elements", p.name, begin, p.whole.elements()));
  return out;
}

}  // namespace

std::int64_t load_weights(const TensorFiles& files, const ModelSpec& model, Parameters& parameters, Backend& backend) {
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
  std::int64_t read = 0;
  for (Parameter& p : parameters.all()) {
    if (p.adapter || p.sources.empty()) continue;
    const MoeFfn* moe = p.cls == WeightClass::experts ? experts_of(model, p.layer) : nullptr;
    const std::int64_t slabs = moe ? moe->experts : 1;
    if (const auto bytes = as_stored(files, model, p, parameters.place(), slabs); !bytes.empty()) {
      backend.write_stored(p.view(), bytes);
      read += static_cast<std::int64_t>(bytes.size());
      continue;
    }
    const std::vector<float> values = cut_values(files, model, p, parameters.place(), slabs, read);
    set_values(p, values, backend);
  }
  return read;
}

}  // namespace moeplan
