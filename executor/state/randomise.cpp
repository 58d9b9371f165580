/// Start values of tensors that no checkpoint gives.

#include <cmath>
#include <stdexcept>

#include "executor/backend/convert.hpp"
#include "executor/state/parameters.hpp"

namespace moeplan {
namespace {

/// splitmix64 (Steele et al. 2014): a counter through a bijective mixer, so any tensor's numbers can be made alone.
class Random {
 public:
  Random(std::uint64_t seed, const std::string& name) : state_(seed * step + 0x1234567) {
    for (const char c : name) state_ = mix(state_ ^ static_cast<unsigned char>(c));
  }
  explicit Random(std::uint64_t state) : state_(state) {}
  std::uint64_t next() { return mix(state_ += step); }
  [[nodiscard]] std::uint64_t state() const { return state_; }
  /// The state after so many numbers.
  static std::uint64_t after(std::uint64_t state, std::int64_t numbers) {
    return state + static_cast<std::uint64_t>(numbers) * step;
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  ///< in [0, 1)
  double between(double low, double high) { return low + (high - low) * unit(); }

 private:
  static constexpr std::uint64_t step = 0x9E3779B97F4A7C15ull;
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
  }
  std::uint64_t state_;
};

bool ends(const std::string& name, std::string_view part) {
  return name.size() >= part.size() && name.compare(name.size() - part.size(), part.size(), part) == 0;
}
bool has(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

/// Whether a tensor starts from normal numbers of deviation 0.02, as all matrices do.
bool is_matrix(const Parameter& p) {
  const std::string& n = p.name;
  for (const char* part : {"lora_A.weight", "lora_B.weight", "A_log", "dt_bias", ".D", "sinks", "attn_sink"})
    if (ends(n, part)) return false;
  for (const char* part : {"norm", "tid2eid", "bias", "conv"})
    if (has(n, part)) return false;
  return p.cls != WeightClass::norm && !p.buffer;
}

/// Element i of the whole tensor has the i-th number, whoever holds it. Runs are made where they lie: a rank's share of
/// a model that no machine holds costs what the share does.
void fill_matrix(Parameter& p, std::uint64_t state, const RankPlace& place, Backend& backend) {
  constexpr float deviation = 0.02f;
  const std::vector<ElementRun> runs = held_runs(p.cut(), place);
  if (plain_bytes(p.held) == 0) {  // blocks of a stored weight may span runs
    if (runs.size() == 1 && runs.front().count == p.shape.elements()) return backend.fill_normal(p.view(), Random::after(state, runs.front().at), deviation);
    std::vector<float> values(static_cast<std::size_t>(p.shape.elements()), 0.0f);
    for (const ElementRun& run : runs)
      for (std::int64_t i = 0; i < run.count; ++i)
        values[static_cast<std::size_t>(run.here + i)] =
            static_cast<float>(nearly_normal(state, static_cast<std::uint64_t>(run.at + i))) *
            (deviation / kNearlyNormalDeviation);
    return set_values(p, values, backend);
  }
  for (const ElementRun& run : runs) {
    const TensorView piece{
        p.value.get() + (backend.name() == "null" ? 0 : run.here * plain_bytes(p.held)), p.held, {run.count}};
    backend.fill_normal(piece, Random::after(state, run.at), deviation);
  }
}

/// One number of another tensor, by the tensor's name.
double value_of(const Parameter& p, const ModelSpec& model, Random& random, std::int64_t at) {
  const std::string& n = p.name;
  const double in = static_cast<double>(p.whole[p.whole.rank - 1]);
  if (ends(n, "lora_A.weight")) return random.between(-1, 1) / std::sqrt(in);
  if (ends(n, "lora_B.weight")) return 0;
  if (ends(n, "A_log")) return std::log(random.between(1, 16));  // Mamba-2, KDA
  if (ends(n, "dt_bias")) {  // softplus^-1 of a step in [0.001, 0.1], log-uniform (Mamba)
    const double step = std::exp(random.between(std::log(0.001), std::log(0.1)));
    return step + std::log(-std::expm1(-step));
  }
  if (ends(n, ".D") || has(n, "norm") || p.cls == WeightClass::norm) return ends(n, ".bias") ? 0 : 1;
  if (has(n, "tid2eid")) {  // k neighbours on a ring of experts: distinct for each token id
    std::int64_t experts = 1;
    for (const Sublayer& s : model.layers[static_cast<std::size_t>(std::max(p.layer, 0))].sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) experts = f->experts;
    const std::int64_t k = p.whole[1];
    return static_cast<double>((at / k * 7 + at % k) % experts);
  }
  if (has(n, "bias") || ends(n, "sinks") || ends(n, "attn_sink") || p.buffer) return 0;
  if (has(n, "conv")) return random.between(-1, 1) / std::sqrt(in);
  throw std::logic_error("no start value for " + n);
}

}  // namespace

void randomise(Parameters& parameters, std::uint64_t seed, const ModelSpec& model, Backend& backend,
               bool only_adapters) {
  for (Parameter& p : parameters.all()) {
    if (only_adapters && !p.adapter) continue;
    Random random(seed, p.name);
    if (is_matrix(p)) {
      fill_matrix(p, random.state(), parameters.place(), backend);
      continue;
    }
    std::vector<float> values;  // element i of the whole tensor has the i-th number here too
    values.resize(static_cast<std::size_t>(p.held_shape().elements()), 0.0f);
    for (const ElementRun& run : held_runs(p.cut(), parameters.place())) {
      Random numbers(Random::after(random.state(), run.at));
      for (std::int64_t i = 0; i < run.count; ++i)
        values[static_cast<std::size_t>(run.here + i)] = static_cast<float>(value_of(p, model, numbers, run.at + i));
    }
    set_values(p, values, backend);
  }
}

}  // namespace moeplan
