/// Megatron-1T on 4,096 A100: the grid that Calculon searches without offload (bench/megatron_grid.hpp), priced by this project's cost
/// model, timed. Blocks are lowered and priced once per (tensor degree, micro-batch, recompute); everything else is a closed form:
///
///   pass        compute of a block + what of its tensor exchange nothing hides (none: all; ring: the first of tp pieces, and what the
///               GEMMs are too short for; pipe: the first half, and what half the GEMMs are too short for)
///   pipeline    (m + (p - 1) / v) passes of a stage: bubble (p - 1) / (v m), Narayanan et al. 2021; each of v (m (p - 1) / p + (p - 1))
///               messages both ways is waited for
///   data        gradients in 2 bytes: all-reduce, or reduce-scatter and all-gather where the optimizer is sharded; overlapped, the last
///               block's share and what the last backward pass is too short for is left
///   memory      2 + 2 + 12 bytes a parameter (the 12 over data ranks where sharded), what blocks keep times min(m, p + (p - 1) / v)
///               micro-batches (Korthikanti et al. 2022), and one block's peak
///
/// As in Calculon embedding and head are left out, a network of 8 must be filled by what is laid on it, and attention-only recompute
/// is the middle way (here: what is cheap to repeat; a fused attention keeps no scores).

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "bench/megatron_grid.hpp"
#include "planner/evaluator_shared.hpp"
#include "planner/problem.hpp"
#include "sim/cost/groups.hpp"

namespace moeplan::bench {
namespace {

constexpr double kBytes = 2;              // of weights, gradients and activations
constexpr std::int64_t kNode = 8;         // devices on network 0

/// A block under (tensor degree, micro-batch, recompute).
struct BlockPrice {
  double forward = 0, backward = 0;                 // compute, seconds; recompute in `backward`
  double forward_gemm = 0, backward_gemm = 0;
  std::array<double, 2> forward_exchange{}, backward_exchange{};   // per network, scattered (reduce-scatter and all-gather)
  std::array<double, 2> forward_reduced{}, backward_reduced{};     // per network, as all-reduces
  std::array<double, 2> again{};                                   // per network: the gathers of the forward pass once more
  double kept = 0, kept_unscattered = 0, gathered_inputs = 0, peak = 0;   // bytes
};

struct Result {
  double seconds = 0, bytes = 0;
};

class Grid {
 public:
  explicit Grid(const Problem& problem, const DenseGrid& grid) : problem_(problem), grid_(grid), shared_(problem, false) {
    for (const auto& [name, w] : weights()) parameters_ += name ? w : 0;
    memory_ = static_cast<double>(problem.cluster.device.memory.value);
  }

  [[nodiscard]] double memory() const { return memory_; }
  [[nodiscard]] double parameters() const { return parameters_; }

  /// What all executions under (tp, pp, interleaving) share.
  void layout(const Execution& e) {
    blocks_ = static_cast<double>(grid_.blocks / e.pp);
    stage_parameters_ = parameters_ / static_cast<double>(e.tp) * blocks_;
    for (const std::int64_t net : {0, 1}) {
      const Bytes gradients{static_cast<std::int64_t>(stage_parameters_ * kBytes)};
      data_[net][0] = collective(Collective::all_reduce, gradients, e.dp, net);
      data_[net][1] = collective(Collective::reduce_scatter, gradients, e.dp, net) + collective(Collective::all_gather, gradients, e.dp, net);
    }
    for (const bool sharded : {false, true}) {
      op::AdamW adam{};
      adam.elements = static_cast<std::int64_t>(stage_parameters_ / (sharded ? static_cast<double>(e.dp) : 1));
      optimizer_[sharded] = shared_.shared().prices.price(OpCall{adam, Pass::forward, {}}).median.value;
    }
    for (Slot& s : slots_) s.known = false;
  }

  /// Nothing if it does not fit on the device or its networks.
  std::optional<Result> evaluate(const Execution& e) {
    std::array<std::int64_t, 2> laid{1, 1};
    laid[static_cast<std::size_t>(e.tensor_net)] *= e.tp;
    laid[static_cast<std::size_t>(e.pipeline_net)] *= e.pp;
    laid[static_cast<std::size_t>(e.data_net)] *= e.dp;
    if (laid[0] > kNode || kNode % laid[0] != 0) return std::nullopt;
    const BlockPrice& b = block(e);
    const auto t = static_cast<std::size_t>(e.tensor_net);
    const double m = static_cast<double>(e.batch / e.dp / e.micro_batch), p = static_cast<double>(e.pp), v = static_cast<double>(e.interleaving), tp = static_cast<double>(e.tp);
    const bool scattered = e.exchange == TensorExchange::sequence_parallel;
    // Memory first: most executions end here.
    const double flying = e.interleaving > 1 ? std::min(m, p + (p - 1) / v) : std::min(m, p);
    const double kept = (scattered ? b.kept - (e.gather_again ? b.gathered_inputs : 0) : b.kept_unscattered) * blocks_;
    const double states = stage_parameters_ * (2 * kBytes + 12 / (e.optimizer_sharding ? static_cast<double>(e.dp) : 1));
    const double bytes = states + kept * flying + b.peak;
    if (bytes > memory_) return std::nullopt;
    const auto exposed = [&](double exchange, double gemm) {
      switch (e.overlap) {
        case TensorOverlap::none: return exchange;
        case TensorOverlap::ring: return std::max(exchange / tp, exchange - gemm);
        case TensorOverlap::pipe: return std::max(exchange / 2, exchange - gemm / 2);
      }
      return exchange;
    };
    const double forward = b.forward + exposed(scattered ? b.forward_exchange[t] : b.forward_reduced[t], b.forward_gemm);
    const double backward = b.backward + exposed((scattered ? b.backward_exchange[t] : b.backward_reduced[t]) + (e.gather_again ? b.again[t] : 0), b.backward_gemm);
    const double stage = blocks_ * (forward + backward);
    double message = 0;
    if (e.pp > 1) {
      message = message_[static_cast<std::size_t>(e.pipeline_net)][e.exchange == TensorExchange::all_reduce ? 0 : 1];
      // Pieces that cross on their own are put together again where they arrive.
      if (e.exchange == TensorExchange::pipeline_scattered) message += collected_[t];
    }
    double seconds = m * stage + (p - 1) * stage / v + 2 * v * message * (m * (p - 1) / p + (p - 1));
    const double data = data_[static_cast<std::size_t>(e.data_net)][e.optimizer_sharding];
    seconds += e.data_overlap ? std::max(data / blocks_, data - blocks_ * backward * (blocks_ - 1) / blocks_) : data;
    return Result{seconds + optimizer_[e.optimizer_sharding], bytes};
  }

 private:
  struct Slot {
    bool known = false;
    std::int64_t micro_batch = 0;
    const BlockPrice* price = nullptr;
    std::array<std::array<double, 2>, 2> message{};
    std::array<double, 2> collected{};
  };

  std::vector<std::pair<bool, double>> weights() const {
    Plan plan;
    plan.stage_layers = {grid_.blocks};
    std::vector<std::pair<bool, double>> out;
    for (const Weight& w : slot_weights(problem_, plan, 1).weights) out.emplace_back(true, static_cast<double>(w.shape.elements()));
    return out;
  }

  double collective(Collective what, Bytes payload, std::int64_t ranks, std::int64_t net) const {
    const GroupShape where{ranks, net == 0 ? 1 : kNode};
    if (ranks <= 1 || payload.value <= 0) return 0;
    return shared_.shared().links.price(CommCall{.collective = what, .group = Group::data_shard, .payload = payload}, where).median.value;
  }

  const BlockPrice& block(const Execution& e) {
    // Executions come with tp and recompute fixed for long and micro-batches cycling: a slot per micro-batch's logarithm.
    const auto log = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(e.micro_batch)));
    Slot& slot = slots_[static_cast<std::size_t>(e.repeat) * 16 + log];
    if (!slot.known || slot.micro_batch != e.micro_batch) {
      slot.known = true;
      slot.micro_batch = e.micro_batch;
      const auto [it, fresh] = known_.try_emplace({e.tp, e.micro_batch, e.repeat});
      if (fresh) it->second = price(e);
      slot.price = &it->second;
      const double activation = static_cast<double>(e.micro_batch * grid_.sequence * grid_.hidden) * kBytes;
      for (const std::int64_t net : {0, 1}) {
        const auto n = static_cast<std::size_t>(net);
        slot.message[n][0] = collective(Collective::send_receive, Bytes{static_cast<std::int64_t>(activation)}, 2, net);
        slot.message[n][1] = collective(Collective::send_receive, Bytes{static_cast<std::int64_t>(activation / static_cast<double>(e.tp))}, 2, net);
        slot.collected[n] = collective(Collective::all_gather, Bytes{static_cast<std::int64_t>(activation)}, e.tp, net);
      }
    }
    message_ = slot.message;
    collected_ = slot.collected;
    return *slot.price;
  }

  static bool kept(const Block& b, ValueId v) { return std::find(b.kept.begin(), b.kept.end(), b.alias[static_cast<std::size_t>(v)]) != b.kept.end(); }
  static double bytes(const Block& b, ValueId v) { return static_cast<double>(b.values[static_cast<std::size_t>(v)].bytes().value); }

  BlockPrice price(const Execution& e) const {
    Plan plan;
    plan.parallelism = {.pp = 1, .tp = static_cast<int>(e.tp), .dp_shard = 1};
    plan.micro_batch = e.micro_batch;
    plan.stage_layers = {grid_.blocks};
    plan.recompute = e.repeat == Repeat::full ? Recompute::full : e.repeat == Repeat::attention ? Recompute::selective : Recompute::none;
    const Block b = lower_slot(problem_, plan, shared_.shared().outline, 1, 1.0);
    BlockPrice out;
    const std::int64_t scattered_rows = e.micro_batch * grid_.sequence / e.tp;
    for (const bool backward : {false, true}) {
      for (const BlockNode& node : backward ? b.backward : b.forward) {
        if (const OpCall* op = std::get_if<OpCall>(&node.call)) {
          const double t = shared_.shared().prices.price(*op).median.value;
          (backward ? out.backward : out.forward) += t;
          if (kind(op->op) == "linear") (backward ? out.backward_gemm : out.forward_gemm) += t;
        } else if (const CommCall* comm = std::get_if<CommCall>(&node.call)) {
          for (const std::int64_t net : {0, 1}) {
            const auto n = static_cast<std::size_t>(net);
            (backward ? out.backward_exchange : out.forward_exchange)[n] += collective(comm->collective, comm->payload, e.tp, net);
            // A gather before a region and a scatter after it are one all-reduce together.
            if (comm->collective == Collective::reduce_scatter) (backward ? out.backward_reduced : out.forward_reduced)[n] += collective(Collective::all_reduce, comm->payload, e.tp, net);
            if (!backward && comm->collective == Collective::all_gather && kept(b, node.writes.front())) out.again[n] += collective(comm->collective, comm->payload, e.tp, net);
          }
          // Gathered again, the whole rows are not kept, but the part they came from is.
          if (!backward && comm->collective == Collective::all_gather && kept(b, node.writes.front()))
            out.gathered_inputs += bytes(b, node.writes.front()) - (kept(b, node.reads.front()) ? 0 : bytes(b, node.reads.front()));
        }
      }
    }
    const BlockMemory held = block_memory(b);
    out.kept = static_cast<double>(held.kept_bytes().value);
    out.kept_unscattered = out.kept;
    for (const ValueId v : b.kept) {
      const Value& value = b.values[static_cast<std::size_t>(v)];
      if (b.alias[static_cast<std::size_t>(v)] == v && value.shape.rank > 0 && value.shape[0] == scattered_rows) out.kept_unscattered += static_cast<double>(value.bytes().value) * static_cast<double>(e.tp - 1);
    }
    out.peak = static_cast<double>(std::max(held.forward.peak(), held.backward.peak()).value);
    return out;
  }

  const Problem& problem_;
  DenseGrid grid_;
  Evaluator shared_;
  double parameters_ = 0, memory_ = 0, blocks_ = 1, stage_parameters_ = 0;
  std::array<std::array<double, 2>, 2> data_{}, message_{};
  std::array<double, 2> optimizer_{}, collected_{};
  std::array<Slot, 48> slots_{};
  std::map<std::tuple<std::int64_t, std::int64_t, Repeat>, BlockPrice> known_;
};

std::string text(const Execution& e) {
  static constexpr std::array repeat{"full", "attention-only", "no"}, exchange{"all-reduce", "scattered messages", "sequence parallel"}, overlap{"none", "ring", "pipe"};
  return fmt::format("t{} p{} d{} i{} mb{}, {} recompute, {}{}, tensor overlap {}, optimizer {}, data overlap {}, networks {}{}{}", e.tp, e.pp, e.dp, e.interleaving, e.micro_batch,
                     repeat[static_cast<std::size_t>(e.repeat)], exchange[static_cast<std::size_t>(e.exchange)], e.gather_again ? " with gathers repeated" : "", overlap[static_cast<std::size_t>(e.overlap)],
                     e.optimizer_sharding ? "sharded" : "whole", e.data_overlap ? "on" : "off", e.tensor_net, e.pipeline_net, e.data_net);
}

int run() {
  using Clock = std::chrono::steady_clock;
  ProblemRequest r;
  r.model = "megatron-1t";
  r.cluster = "4096xa100";
  r.workload = "pretrain";
  r.runtime = "megatron-core";
  r.load = "uniform";
  r.sequence_length = 2048;
  const Problem problem = make_problem(MOEPLAN_SOURCE "/configs", r);
  const DenseGrid dense;
  const auto start = Clock::now();
  Grid grid(problem, dense);
  std::int64_t executions = 0, feasible = 0;
  Execution best{}, theirs{};
  Result best_result{1e30, 0}, their_result{1e30, 0};
  for_each_execution(dense, [&](const Execution& e) { grid.layout(e); }, [&](const Execution& e) {
    ++executions;
    const std::optional<Result> result = grid.evaluate(e);
    if (!result) return;
    ++feasible;
    if (result->seconds < best_result.seconds) best = e, best_result = *result;
    const bool same = e.tp == 8 && e.pp == 16 && e.interleaving == 8 && e.micro_batch == 2 && e.repeat == Repeat::attention;
    if (same && result->seconds < their_result.seconds) theirs = e, their_result = *result;
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double tokens = static_cast<double>(dense.batch * dense.sequence);
  const double flops = 6 * grid.parameters() * static_cast<double>(dense.blocks) * tokens + 6.0 * static_cast<double>(dense.blocks * dense.hidden * dense.sequence) * tokens;
  const auto line = [&](const char* who, const Execution& e, const Result& x) {
    fmt::print("{}: {}: {:.3f} s a step, {:.1f} GiB, MFU {:.1f} %\n", who, text(e), x.seconds, x.bytes / (1 << 30), 100 * flops / x.seconds / static_cast<double>(dense.devices) / problem.cluster.device.peak.at("bf16").value);
  };
  fmt::print("{} executions, {} feasible, {:.3f} s on one core, {:.0f} executions/s\n", executions, feasible, seconds, static_cast<double>(executions) / seconds);
  line("best here", best, best_result);
  if (their_result.seconds < 1e30) line("t8 p16 d32 i8 mb2 attention-only", theirs, their_result);
  return 0;
}

}  // namespace
}  // namespace moeplan::bench

int main() {
  try {
    return moeplan::bench::run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
