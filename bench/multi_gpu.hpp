#pragma once
/// What the parts of multi_gpu_bench share: how a call of all ranks is timed, alone and beside products.

#include <fmt/format.h>

#include <functional>

#include "executor/cuda/backend.hpp"
#include "executor/comm/communicator.hpp"
#include "kernels/cuda.hpp"
#include "sim/cost/collectives.hpp"

namespace moeplan::multi_gpu {

using kernels::DeviceBuffer;
using kernels::Event;
using kernels::Stream;

/// Products that take about a millisecond each, queued on a stream of their own.
class Compute {
 public:
  Compute();
  void queue(int times);
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }

 private:
  static constexpr std::int64_t kTokens = 8192, kWidth = 7168;
  Op op_ = op::Linear{.tokens = kTokens, .in = kWidth, .out = kWidth};
  Stream stream_;
  cuda::Products products_;
  DeviceBuffer x_, w_, y_, scratch_;
};

/// A rank's side: its communicator issues on the backend's queue.
struct Machine {
  Communicator& world;
  Backend& backend;
  DeviceBuffer& send;
  DeviceBuffer& receive;
  Compute* compute = nullptr;   ///< absent where ranks share a device: times mean nothing there
  const ClusterSpec& cluster;
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(backend.queue()); }
};

struct Row {
  std::string what;
  std::int64_t bytes = 0;
  double predicted = 0, measured = 0, beside = 0, hidden = 0;
};

using Call = std::function<void()>;
[[nodiscard]] double slowest(Communicator& world, double seconds);
/// Measures `call` alone and beside products.
[[nodiscard]] Row timed(const Machine& m, Row row, const Call& call);

struct Routing {
  const char* model;
  std::int64_t experts, top_k, hidden;
};
/// `tokens` of each of `ranks` go to their experts and back: copy by copy, once to each rank, and once to each half of the host and from there once to
/// each rank. A token's experts are drawn without replacement in proportion to `counts`; empty: all alike.
class Exchanges {
 public:
  Exchanges(const Routing& of, std::int64_t ranks, std::int64_t tokens, const std::vector<double>& counts);
  /// There and back by each way, nothing measured yet.
  [[nodiscard]] std::vector<Row> predicted(const ClusterSpec& cluster) const;
  /// Checks that weights of 1/top-k bring every row back as it was; throws std::runtime_error if not.
  [[nodiscard]] std::vector<Row> measured(const Machine& m) const;

 private:
  [[nodiscard]] std::int64_t local() const { return of_.experts / ranks_; }
  [[nodiscard]] std::int64_t bytes(std::int64_t rows) const { return rows * of_.hidden * 2; }
  /// Ranks of a node in each way in which a token goes once: all, and half of them.
  [[nodiscard]] std::vector<std::int64_t> nodes() const;
  [[nodiscard]] std::string name(const char* how, const char* way) const;

  Routing of_;
  std::int64_t ranks_, tokens_;
  std::vector<std::vector<std::int64_t>> chosen_;   ///< by rank: [tokens, top_k]
  std::vector<std::int64_t> rows_;                  ///< [source][destination]: copies
  std::int64_t most_rows_ = 0;                      ///< of the rank that gets most
  double skew_ = 1;                                 ///< that over the mean
};

}  // namespace moeplan::multi_gpu
