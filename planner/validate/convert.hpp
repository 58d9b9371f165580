#pragma once
/// From a measured row to what moeplan prices: the problem, the plan that ran, and what was measured of it.

#include <variant>

#include "core/spec/plan.hpp"
#include "planner/validate/host_work.hpp"
#include "planner/validate/rows.hpp"
#include "planner/validate/words.hpp"

namespace moeplan::validation {

enum class Measure : std::uint8_t { step_time, peak_allocated, peak_reserved };

struct Target {
  Measure quantity = Measure::step_time;
  double measured = 0;     ///< seconds or bytes
  bool on_device = false;  ///< of a reserved peak: the driver's figure, context and communicators included
};

struct Case {
  std::string id, source, hardware;
  std::string kind;  ///< what its interval is taken from: "profiled", "dense, one node", "experts, several nodes", ...
  Problem problem;
  Plan plan;
  int virtual_stages = 1;
  int extra_heads = 0;  ///< of multi-token prediction, on the only stage
  bool every_second_product =
      false;  ///< PyTorch's per-operator selective checkpointing: every second GEMM runs again in the backward pass
  bool compiled = false;         ///< of that: torch.compile leaves out what the backward pass does not read
  bool attention_again = false;  ///< of that: attention is not on the list of what is saved
  HostWork host;
  bool overlaps_exchange = false;  ///< expert exchanges of one micro-batch run under another's compute
  bool paged_optimizer = false;    ///< its states move to host memory where there is no room
  bool recompute_unsaid = false;   ///< the row does not say what was recomputed
  std::vector<Target> targets;
  bool high = false;    ///< confidence of the row
  bool failed = false;  ///< the run is said to have run out of memory
};

/// What a conversion needs besides the row; read once.
struct Library {
  std::filesystem::path configs;
  Words words;
  std::map<std::string, ModelDims> models;
};

/// Throws InputError with what is missing or cannot be understood: the reason why the row is skipped.
[[nodiscard]] Case convert(const Row& row, const Library& library);

/// Whether a row has every field that scoring needs; else the first that is missing.
[[nodiscard]] std::optional<std::string> missing_field(const Row& row, const Library& library);

}  // namespace moeplan::validation

namespace moeplan {
template <>
struct EnumNames<validation::Measure> {
  static constexpr std::array names{std::pair{validation::Measure::step_time, std::string_view("step_time")},
                                    std::pair{validation::Measure::peak_allocated, std::string_view("peak_allocated")},
                                    std::pair{validation::Measure::peak_reserved, std::string_view("peak_reserved")}};
};
}  // namespace moeplan
