#include "sim/program/runtime_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/read.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {
namespace {

/// Of `traffic`, besides operators: bytes an element or a logit, factors of host time, and switches (any value).
constexpr std::array<std::string_view, 17> kTraffic{"accumulate", "wide_pair", "gradient_copies", "gradient_sum", "gradient_zeroed", "gradient_scaled",
                                                    "expert_host", "launch_blocking", "gather_by_broadcast", "gathers_after_backward", "reduces_to_all", "head_in_pieces", "looped_experts", "narrow_expert", "copied_once", "context_ring", "expert_bias"};
/// Of `kept`, besides operators.
constexpr std::array<std::string_view, 18> kKept{"stand_in_gradient", "dropped_input", "stream", "weighted_activation", "narrow_input", "update_in_backward", "second_temporary", "held_checkpoint",
                                                "copied_out", "root_unit", "adapters", "eager_cross_entropy", "compiled_cross_entropy", "held_logits", "chunked_head", "scored_rows", "narrow_gradients", "stage_outputs"};

template <std::size_t... I>
std::vector<std::string_view> kinds(std::index_sequence<I...>) {
  return {kind(Op{std::in_place_index<I>})...};
}

void check_map(const Runtime& runtime, const char* field, const std::map<std::string, double>& given, std::vector<std::string_view> known) {
  const auto operators = kinds(std::make_index_sequence<std::variant_size_v<Op>>{});
  known.insert(known.end(), operators.begin(), operators.end());
  for (const auto& [name, value] : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string_view near = nearest_name(name, known);
    throw InputError(fmt::format("runtime {}: {}", runtime.name, field), fmt::format("\"{}\" is neither an operator nor a known entry: it would change nothing", name), near.empty() ? fmt::format("known: {}", fmt::join(known, ", ")) : fmt::format("did you mean \"{}\"?", near));
  }
}

}  // namespace

void check_names(const Runtime& runtime) {
  check_map(runtime, "traffic", runtime.traffic, {kTraffic.begin(), kTraffic.end()});
  check_map(runtime, "kept", runtime.kept, {kKept.begin(), kKept.end()});
}

}  // namespace moeplan
