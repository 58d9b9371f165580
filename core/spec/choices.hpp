#pragma once
/// The choices of a plan beyond its degrees: how attention and states cross context ranks, what moves to host memory, how tokens reach
/// their experts and what happens to those that do not fit.

#include <optional>

#include "core/dtype.hpp"
#include "core/fields.hpp"

namespace moeplan {

/// How softmax attention sees keys of other context ranks.
enum class ContextExchange : std::uint8_t {
  ring,         ///< keys and values pass from rank to rank, each step attends to one part
  all_to_all,   ///< heads are exchanged for tokens: whole sequences, fewer heads (Ulysses)
};
template <>
struct EnumNames<ContextExchange> {
  static constexpr std::array names{std::pair{ContextExchange::ring, std::string_view("ring")}, std::pair{ContextExchange::all_to_all, std::string_view("all_to_all")}};
};

/// How the recurrent state of a linear mixer crosses context ranks.
enum class StatePassing : std::uint8_t {
  chain,   ///< each rank waits for the state of the one before
  scan,    ///< affine maps are combined in a logarithmic number of rounds
};
template <>
struct EnumNames<StatePassing> {
  static constexpr std::array names{std::pair{StatePassing::chain, std::string_view("chain")}, std::pair{StatePassing::scan, std::string_view("scan")}};
};

/// What lives in host memory between its uses: a set of three parts, one bit each.
enum class Offload : std::uint8_t { none, optimizer, weights, optimizer_weights, activations, optimizer_activations, weights_activations, all };
template <>
struct EnumNames<Offload> {
  static constexpr std::array names{std::pair{Offload::none, std::string_view("none")},
                                    std::pair{Offload::optimizer, std::string_view("optimizer")},
                                    std::pair{Offload::weights, std::string_view("weights")},
                                    std::pair{Offload::optimizer_weights, std::string_view("optimizer+weights")},
                                    std::pair{Offload::activations, std::string_view("activations")},
                                    std::pair{Offload::optimizer_activations, std::string_view("optimizer+activations")},
                                    std::pair{Offload::weights_activations, std::string_view("weights+activations")},
                                    std::pair{Offload::all, std::string_view("all")}};
};
[[nodiscard]] constexpr bool offloads_optimizer(Offload o) { return (static_cast<unsigned>(o) & 1U) != 0; }     ///< optimizer states and master weights
[[nodiscard]] constexpr bool offloads_weights(Offload o) { return (static_cast<unsigned>(o) & 2U) != 0; }       ///< frozen weights
[[nodiscard]] constexpr bool offloads_activations(Offload o) { return (static_cast<unsigned>(o) & 4U) != 0; }   ///< what is kept for backward

/// The way of a token to experts on other nodes.
enum class DispatchRoute : std::uint8_t {
  two_hop,   ///< once to each node, there on to the ranks
  direct,    ///< once to each rank
};
template <>
struct EnumNames<DispatchRoute> {
  static constexpr std::array names{std::pair{DispatchRoute::two_hop, std::string_view("two_hop")}, std::pair{DispatchRoute::direct, std::string_view("direct")}};
};

/// Which assignments an expert refuses beyond its capacity.
enum class Overflow : std::uint8_t {
  drop_probability,   ///< the least probable
  drop_position,      ///< the last of the batch
  reroute,            ///< they go to the next expert with room
};
template <>
struct EnumNames<Overflow> {
  static constexpr std::array names{std::pair{Overflow::drop_probability, std::string_view("drop_probability")}, std::pair{Overflow::drop_position, std::string_view("drop_position")},
                                    std::pair{Overflow::reroute, std::string_view("reroute")}};
};

/// Where experts live.
enum class ExpertPlacement : std::uint8_t {
  contiguous,     ///< in their order
  balanced,       ///< by expected load over all ranks (EPLB global)
  hierarchical,   ///< groups of experts stay on a node (EPLB hierarchical)
};
template <>
struct EnumNames<ExpertPlacement> {
  static constexpr std::array names{std::pair{ExpertPlacement::contiguous, std::string_view("contiguous")}, std::pair{ExpertPlacement::balanced, std::string_view("balanced")},
                                    std::pair{ExpertPlacement::hierarchical, std::string_view("hierarchical")}};
};

/// How routed tokens reach experts and come back.
struct ExpertExchange {
  DType dispatch = DType::bf16;               ///< type in which tokens travel to the experts: bf16, or fp8 with a float per 128 values
  DispatchRoute route = DispatchRoute::two_hop;
  std::int64_t chunks = 1;                    ///< pieces whose exchange runs under another piece's experts
  std::optional<double> capacity_factor{};    ///< rows an expert takes over the mean; dropless without
  Overflow overflow = Overflow::drop_probability;
  bool pad = false;                           ///< experts work on their full capacity, which fixes shapes
  std::int64_t replicas = 0;                  ///< slots beyond one per expert, over all ranks of the expert group
  ExpertPlacement placement = ExpertPlacement::contiguous;
  bool operator==(const ExpertExchange&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("dispatch", &ExpertExchange::dispatch, "bf16 or fp8"), field("route", &ExpertExchange::route, "two_hop or direct"),
                           field("chunks", &ExpertExchange::chunks, "pieces that overlap").between(1, 64),
                           field("capacity_factor", &ExpertExchange::capacity_factor, "rows of an expert over the mean; dropless without").above(0).at_most(1024),
                           field("overflow", &ExpertExchange::overflow), field("pad", &ExpertExchange::pad, "experts always work on their full capacity"),
                           field("replicas", &ExpertExchange::replicas, "expert slots beyond one each").between(0, 1 << 20), field("placement", &ExpertExchange::placement));
  }
};

}  // namespace moeplan
