#pragma once
/// What a run measured, in the types that predictions have: a timeline of one step on this rank, memory by category, the steps.

#include "core/json.hpp"
#include "executor/train/train.hpp"

namespace moeplan {

/// What noting the time takes on the backend's queue, a call that is timed in a step for itself: the median gap of 64 stamps in a row. It must have
/// no stamps of its own waiting.
[[nodiscard]] double stamp_seconds(Backend& backend);

/// From here on, until the next.
struct HeldMemory {
  Picoseconds start = 0;
  Bytes bytes{};
};

/// Collects the calls of a step as a timeline of one rank; install it with `Walk::time`. `stamp`: seconds taken off each call.
class StepRecorder {
 public:
  explicit StepRecorder(const Program& program, double stamp = 0) : program_(program), stamp_(stamp) {}
  void record(const Instance& instance, const BlockNode& node, double begin, double end);
  [[nodiscard]] StepTimeline timeline() const;
  /// Memory over that step, one point for each of its passes: what the arena holds in it, beside the rest of `peak`, which stands.
  [[nodiscard]] std::vector<HeldMemory> memory(const ArenaPlan& arena, Bytes peak) const;

 private:
  struct Stretch {
    std::int32_t slot = -1, micro_batch = -1;
    bool backward = false;
    double begin = 0, end = 0;
    struct Part { std::string name; Activity kind; double begin, end; };
    std::vector<Part> parts;
  };
  const Program& program_;
  double stamp_ = 0;
  std::vector<Stretch> stretches_;
  std::vector<std::pair<Instance, Stretch::Part>> copies_;   ///< over the host link
};

/// As measured.json keeps it: [{"start_ps", "bytes"}, ...].
[[nodiscard]] Json held_json(const std::vector<HeldMemory>& held);

/// Bytes by category, those that are zero left out, with `peak_bytes` and `peak_at`.
[[nodiscard]] Json memory_json(const MemoryBreakdown& memory);

}  // namespace moeplan
