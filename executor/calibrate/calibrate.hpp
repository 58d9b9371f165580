#pragma once
/// This machine, measured: the calls of lowered programs, one by one on a backend.

#include <functional>
#include <map>
#include <span>

#include "core/spec/profile.hpp"
#include "executor/backend/backend.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// The different calls of a program, by calibration key; views, which take no time, left out.
[[nodiscard]] std::map<std::string, OpCall> calls_of(const Program& program);

/// Adds the update of all that the program trains, where it is AdamW's: with it is timed what else a step does with weight gradients (executor/calibrate/stage.hpp).
/// Of at most 2^30 elements: each of more takes as long.
void add_update(std::map<std::string, OpCall>& calls, const Program& program);

/// Adds the calls on routed rows at half and twice as many, and with `tiles` (kernels that cut an expert's rows into tiles of 128) grouped products
/// at other rows of an expert, from which those of any load follow (sim/cost/price.hpp): a tile begun, full and just passed, few experts with many rows.
void add_loads(std::map<std::string, OpCall>& calls, bool tiles);

/// More than any last cache here: 50 MB on H200, 126 MB on B200.
inline constexpr Bytes kMostCleared{192 << 20};

struct TimingOptions {
  std::int64_t least = 5, most = 50;   ///< samples of one call
  double noise = 0.02;                 ///< enough when the median's standard error is below this share of it
  Seconds limit{2};                    ///< and in any case after this long on one call, with `least` samples
  Seconds busy{};                      ///< before each sample the device multiplies matrices for about so long, as in a step: its clock follows its load
  Bytes touched = kMostCleared;        ///< by a step between two uses of an operand: so much is cleared before each sample
  double rest = 0;                     ///< after each sample it does nothing for so many times as long: its clock stays where it is without load
};

/// Times one call on operands with made-up values: reals nearly normal, integers by kernels/example_values.hpp. Caches are as in a step: before each sample a buffer as
/// large as what a step touches, or larger than the last cache, is cleared (`flush`, f32), so that weights and kept values come from where they do in a step (a tiny
/// model's from the cache), and then what the calls before would just have written, inputs or arriving gradients, is written again. A host, which takes its scratch from the heap, performs
/// the call between the two, for in a step the call before has left that scratch in the cache: on operands of their own, where those could stay in a cache. Throws InputError where the operands do not fit the device, naming the call.
/// What events around nothing measure (`bare`) is taken off.
struct Surroundings {
  TensorView flush;
  Seconds bare{};
  std::function<void()> busy = {};   ///< work of `options.busy`
};
[[nodiscard]] ProfileSample time_call(Backend& backend, const OpCall& call, const TimingOptions& options, const Surroundings& around);

struct Calibration {
  std::vector<ProfileSample> samples;   ///< by key
  std::vector<std::string> refused;     ///< keys that the backend does not run, or whose operands do not fit, with the reason
  double median_spread = 0, worst_spread = 0;
};

/// Times every call that is not among `known`; samples of both are returned. `progress(done, all)` after each.
[[nodiscard]] Calibration calibrate(Backend& backend, const std::map<std::string, OpCall>& calls, const std::vector<ProfileSample>& known, const TimingOptions& options,
                                    const std::function<void(std::size_t, std::size_t, const std::vector<ProfileSample>&)>& progress);

}  // namespace moeplan
