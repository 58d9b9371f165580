#pragma once
/// What a run says while it goes: a JSON line a step, a Prometheus text file, warnings on what looks wrong.

#include <deque>
#include <filesystem>

#include "core/json.hpp"
#include "executor/train/train.hpp"

namespace moeplan {

/// The JSON line of a step. Stable keys: step, loss, grad_norm, lr, tokens, tokens_per_second, step_s, mfu, mem_peak_bytes,
/// imbalance_max, drop_rate, expert_tokens (by layer). `mfu`: model flops over what the devices could do in that time; left out where 0 (no device's peak to hold it to).
[[nodiscard]] Json step_json(const StepReport& report, const MemoryBreakdown& memory, double mfu = 0);

/// Prometheus text exposition of the latest step.
[[nodiscard]] std::string prometheus_text(const StepReport& report, const MemoryBreakdown& measured, const MemoryBreakdown& predicted, std::int64_t total_tokens, double mfu = 0);

/// Looks for spikes: a loss or a gradient norm more than six standard deviations (and a fifth, or four times) above the mean of the last
/// 32 finite steps; non-finite values; an expert that takes more than ten times the mean.
class Watch {
 public:
  [[nodiscard]] std::vector<std::string> warnings(const StepReport& report);

 private:
  std::deque<double> losses_, norms_;
};

}  // namespace moeplan
