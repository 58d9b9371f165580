#include "sim/program/runtime_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {
namespace {

/// Of `traffic`, besides operators: bytes an element or a logit, factors of host time, and switches (any value).
constexpr std::array<std::string_view, 12> kTraffic{"accumulate", "wide_pair", "gradient_copies", "gradient_sum", "gradient_zeroed", "gradient_scaled",
                                                    "narrow_host", "expert_host", "launch_blocking", "gather_by_broadcast", "gathers_after_backward", "reduces_to_all"};
/// Of `kept`, besides operators.
constexpr std::array<std::string_view, 7> kKept{"stand_in_gradient", "dropped_input", "stream", "weighted_activation", "narrow_input", "update_in_backward", "held_checkpoint"};

template <std::size_t... I>
std::vector<std::string_view> kinds(std::index_sequence<I...>) {
  return {kind(Op{std::in_place_index<I>})...};
}

/// Letters to change, add or drop.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t before = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) before = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, before + (a[i - 1] != b[j - 1])}));
  }
  return row.back();
}

void check_map(const Runtime& runtime, const char* field, const std::map<std::string, double>& given, std::vector<std::string_view> known) {
  const auto operators = kinds(std::make_index_sequence<std::variant_size_v<Op>>{});
  known.insert(known.end(), operators.begin(), operators.end());
  for (const auto& [name, value] : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto nearest = std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) { return distance(name, a) < distance(name, b); });
    throw InputError(fmt::format("runtime {}: {}", runtime.name, field), fmt::format("\"{}\" is neither an operator nor a known entry: it would change nothing", name), fmt::format("did you mean \"{}\"?", *nearest));
  }
}

}  // namespace

void check_names(const Runtime& runtime) {
  check_map(runtime, "traffic", runtime.traffic, {kTraffic.begin(), kTraffic.end()});
  check_map(runtime, "kept", runtime.kept, {kKept.begin(), kKept.end()});
}

}  // namespace moeplan
