#pragma once
/// The grid of executions that Calculon searches for a dense model without offload (calculon-ai/calculon caa4b11, command
/// llm-optimal-execution): every dimension in its order, for a count to compare and a search to time.

#include <array>
#include <cstdint>
#include <vector>

namespace moeplan::bench {

enum class TensorExchange : std::uint8_t { all_reduce, pipeline_scattered, sequence_parallel };   // ar, p2p_rs_ag, rs_ag
enum class TensorOverlap : std::uint8_t { none, ring, pipe };
enum class Repeat : std::uint8_t { full, attention, none };

/// A dense model and the machines, as the enumeration sees them.
struct DenseGrid {
  std::int64_t devices = 4096, batch = 4096, hidden = 25600, heads = 160, blocks = 128, sequence = 2048;
  std::int64_t networks = 2;
};

struct Execution {
  std::int64_t tp = 1, pp = 1, dp = 1, interleaving = 1, batch = 1, micro_batch = 1;
  Repeat repeat = Repeat::full;
  bool optimizer_sharding = false, data_overlap = false, gather_again = false;
  TensorExchange exchange = TensorExchange::all_reduce;
  TensorOverlap overlap = TensorOverlap::none;
  std::int64_t tensor_net = 0, pipeline_net = 0, data_net = 0;
  bool operator==(const Execution&) const = default;
};

inline std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

/// Calls `layout(execution)` for each (tp, pp, interleaving), then `visit(execution)` for each execution under it. A dimension that a
/// degree of one makes a no-op has one value; the other no-ops Calculon counts, and so does this.
template <class Layout, class Visit>
void for_each_execution(const DenseGrid& g, const Layout& layout, const Visit& visit) {
  Execution e;
  for (const std::int64_t tp : divisors(g.devices)) {
    if (g.hidden % tp != 0 || g.heads % tp != 0) continue;
    const std::int64_t most = g.devices / tp < g.blocks ? g.devices / tp : g.blocks;
    for (const std::int64_t pp : divisors(most)) {
      if (g.devices % (tp * pp) != 0 || g.blocks % pp != 0) continue;
      const std::int64_t dp = g.devices / tp / pp;
      e.tp = tp, e.pp = pp, e.dp = dp;
      e.batch = g.batch / dp * dp > 0 ? g.batch / dp * dp : dp;
      std::vector<std::int64_t> micro_batches;
      for (const std::int64_t b : divisors(e.batch / dp))
        if (b * g.sequence % tp == 0) micro_batches.push_back(b);
      for (const std::int64_t v : pp == 1 ? std::vector<std::int64_t>{1} : divisors(g.blocks / pp)) {
        e.interleaving = v;
        layout(e);
        for (const Repeat repeat : {Repeat::full, Repeat::attention, Repeat::none}) {
          e.repeat = repeat;
          for (int sharding = dp > 1 ? 1 : 0; sharding >= 0; --sharding) {
            e.optimizer_sharding = sharding != 0;
            for (const TensorExchange exchange : {TensorExchange::all_reduce, TensorExchange::pipeline_scattered, TensorExchange::sequence_parallel}) {
              e.exchange = exchange;
              for (int again = exchange == TensorExchange::sequence_parallel && repeat != Repeat::full ? 1 : 0; again >= 0; --again) {
                e.gather_again = again != 0;
                for (int data_overlap = dp > 1 ? 1 : 0; data_overlap >= 0; --data_overlap) {
                  e.data_overlap = data_overlap != 0;
                  for (const TensorOverlap overlap : {TensorOverlap::none, TensorOverlap::ring, TensorOverlap::pipe}) {
                    if (tp == 1 && overlap != TensorOverlap::none) continue;
                    e.overlap = overlap;
                    for (const std::int64_t micro_batch : micro_batches) {
                      e.micro_batch = micro_batch;
                      for (e.tensor_net = 0; e.tensor_net < (tp > 1 ? g.networks : 1); ++e.tensor_net)
                        for (e.pipeline_net = 0; e.pipeline_net < (pp > 1 ? g.networks : 1); ++e.pipeline_net)
                          for (e.data_net = 0; e.data_net < (dp > 1 ? g.networks : 1); ++e.data_net) visit(static_cast<const Execution&>(e));
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace moeplan::bench
