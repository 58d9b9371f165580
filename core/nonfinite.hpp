#pragma once
/// What stands for `NaN`, `Infinity` and `-Infinity` where a reader lets them pass (JsonLimits): a text of this character, then nothing, + or -.

namespace moeplan {

inline constexpr char kNonfinite = '\x7f';

}  // namespace moeplan
