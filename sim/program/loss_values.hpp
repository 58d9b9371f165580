#pragma once
/// Names of the values that stand for what a runtime holds beside a call and keeps for its backward call.

#include <string_view>

namespace moeplan {

inline constexpr std::string_view kBesideForward = "beside the forward call",
                                  kBesideBackward = "beside the backward call", kKeptByRuntime = "kept by the runtime";

}  // namespace moeplan
