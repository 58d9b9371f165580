#pragma once
/// What the host does in a step: it issues every kernel that no CUDA graph holds, and where it needs longer for a
/// micro-batch than the device, or waits for each kernel, the step takes its time.
///
/// Seconds: calls of our program times `Runtime::host_call`, a framework's time for one of them (about five of its own
/// operations); an expert layer's dispatch, permutation and products take `Runtime::traffic["expert_host"]` times as
/// long. A step of m micro-batches on p stages takes at least host x (m + p - 1) and the optimizer; with
/// CUDA_LAUNCH_BLOCKING=1, which makes the host wait for each kernel, host and device take turns and the two add up.
/// In fp8 and fp4 the experts' products are cast and issued expert by expert: `traffic["narrow_expert"]` of a call more for
/// each of a rank's experts (Transformer Engine).
///
/// Where no token is dropped, the host reads the experts' counts back in each layer's forward pass. It has waited for
/// the device to get there, so the device has nothing to do while the host issues what follows, the experts' calls:
/// their host time adds to the device's. Not where all is in a graph, where tokens are dropped to a capacity (sizes are
/// known before), or where another micro-batch's compute runs beside the exchange.

#include "planner/validate/rows.hpp"
#include "sim/program/program.hpp"

namespace moeplan::validation {

/// What of a layer runs in CUDA graphs.
enum class Graphs : std::uint8_t {
  none,
  attention,  ///< attention, router and what they need; not the experts, whose sizes the host learns
  whole,      ///< the whole iteration
};

struct HostWork {
  Graphs graphs = Graphs::none;
  bool narrow = false;  ///< experts' products in fp8 or fp4: casts, amax and transposes are issued expert by expert
  bool takes_turns = false;
  bool reads_counts = false;  ///< in the forward pass of each expert layer
};

/// As the row's notes name graphs ("cuda graph impl=transformer_engine scope=['attn', ...]").
[[nodiscard]] Graphs graphs_of(const Row& row);

/// Seconds of host time that one micro-batch takes on the program's stage.
struct HostSeconds {
  double all = 0;
  double behind_counts = 0;  ///< of these, experts' calls of the forward pass where counts are read back
};
[[nodiscard]] HostSeconds host_seconds(const Program& program, const Runtime& runtime, const HostWork& work);

}  // namespace moeplan::validation
