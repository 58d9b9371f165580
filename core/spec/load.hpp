#pragma once
/// How tokens fall on experts. The generators and their use are in sim/load.

#include <string>
#include <variant>
#include <vector>

#include "core/fields.hpp"

namespace moeplan {

struct UniformLoad {
  static constexpr std::string_view kind = "uniform";
  bool operator==(const UniformLoad&) const = default;
  template <class = void> static constexpr auto fields() { return std::make_tuple(); }
};

/// Share of the i-th hottest expert proportional to i^-exponent.
struct ZipfLoad {
  static constexpr std::string_view kind = "zipf";
  double exponent = 0.45;
  bool operator==(const ZipfLoad&) const = default;
  template <class = void> static constexpr auto fields() { return std::make_tuple(field("exponent", &ZipfLoad::exponent).required().between(0, 8)); }
};

/// load = exp(N(0, group_sigma) per group of neighbours + N(0, expert_sigma)), normalised.
struct LogNormalLoad {
  static constexpr std::string_view kind = "log_normal";
  double expert_sigma = 0.5, group_sigma = 0;
  std::int64_t group_size = 32;
  bool operator==(const LogNormalLoad&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("expert_sigma", &LogNormalLoad::expert_sigma).required().between(0, 4), field("group_sigma", &LogNormalLoad::group_sigma).between(0, 4),
                           field("group_size", &LogNormalLoad::group_size).between(1, 65536));
  }
};

/// Symmetric Dirichlet of concentration alpha.
struct DirichletLoad {
  static constexpr std::string_view kind = "dirichlet";
  double alpha = 3;
  bool operator==(const DirichletLoad&) const = default;
  template <class = void> static constexpr auto fields() { return std::make_tuple(field("alpha", &DirichletLoad::alpha).required().above(0).at_most(1e9)); }
};

/// Recorded token counts, one row per MoE layer, one column per expert.
struct TraceLoad {
  static constexpr std::string_view kind = "trace";
  std::vector<std::vector<double>> counts;
  bool operator==(const TraceLoad&) const = default;
  template <class = void> static constexpr auto fields() { return std::make_tuple(field("counts", &TraceLoad::counts, "layer x expert").required().between(0, 1e18)); }
};

struct LoadModel {
  std::string name = "custom";
  std::string source;
  std::int64_t seed = 1;
  std::variant<UniformLoad, ZipfLoad, LogNormalLoad, DirichletLoad, TraceLoad> distribution;
  bool operator==(const LoadModel&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &LoadModel::name), field("source", &LoadModel::source), field("seed", &LoadModel::seed).at_least(0),
                           field("distribution", &LoadModel::distribution).required());
  }
};

}  // namespace moeplan
