#pragma once
/// One expert exchange in token copies: who sends how many to whom (the all-to-all-v matrix), and the rows of each expert slot's
/// GEMM. Drawn exactly: each sequence of each source draws its own shares around the layer's (Dirichlet), then its assignments from
/// them one by one. What a search needs of it, the received rows over their mean, comes cheaper from `realised`; a test compares.

#include <optional>

#include "sim/load/placement.hpp"

namespace moeplan {

/// What one rank brings to an exchange.
struct SourceBatch {
  std::int64_t sequences = 1;          ///< whole or parts of sequences on one source rank
  std::int64_t tokens = 4096;          ///< of each
  std::int64_t top_k = 8;
  double precision = 800;              ///< of the per-sequence Dirichlet, as in Sampling
  std::optional<double> capacity_factor = {};   ///< Megatron's: an expert takes ceil(tokens k / E x CF) copies of each source; none: dropless
};

struct Exchange {
  std::int64_t ranks = 1;
  std::vector<std::int64_t> rows;      ///< source x destination, row by row
  std::vector<std::int64_t> slot_rows; ///< per slot of the placement: rows of its GEMM
  std::int64_t dropped = 0;            ///< copies beyond a capacity
  [[nodiscard]] std::int64_t sent(std::int64_t source) const;
  [[nodiscard]] std::int64_t received(std::int64_t destination) const;
  [[nodiscard]] std::int64_t total() const;
};

/// Every rank of the placement is a source of one `batch`. Copies of an expert with replicas go to them in turn.
[[nodiscard]] Exchange draw_exchange(const Shares& population, const Placement& placement, const SourceBatch& batch, std::uint64_t seed);

}  // namespace moeplan
