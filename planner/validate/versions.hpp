#pragma once
/// Which version of its software a row ran, as its words say: releases ("torch 2.4.1", "torchtitan 0.0.2") and the
/// month of a commit behind a name ("torchtitan 6fc499f (2025-08"). What a framework allocates and runs changes from
/// one to the next, so that rules compare them rather than look for one row's words.

#include <compare>
#include <optional>
#include <string_view>

#include "planner/validate/rows.hpp"

namespace moeplan::validation {

struct Release {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const Release&) const = default;
};

/// The release behind a name in the row's version, whatever its case.
[[nodiscard]] std::optional<Release> release_of(const Row& row, std::string_view name);

struct Month {
  int year = 0, month = 1;
  auto operator<=>(const Month&) const = default;
};

/// When the framework's sources were those that ran: the month that its version gives, torchtitan's releases by the
/// month that they came out in, otherwise the middle of the row's year; nothing where that is missing too.
[[nodiscard]] std::optional<Month> sources_of(const Row& row);

}  // namespace moeplan::validation
