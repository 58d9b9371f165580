#include "planner/validate/predict.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "planner/planner.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/memory/replay.hpp"
#include "sim/memory/replay_fsdp.hpp"

namespace moeplan::validation {
namespace {

/// Where no residuals are kept for a kind of case.
constexpr double kWideLow = 0.6, kWideHigh = 1.8;

Predicted with_band(double value, Measure measure, const Case& c, const Words& words) {
  for (const BandWords& b : words.bands)
    if (b.quantity == name_of(measure) && b.kind == c.kind) return {value, value * b.low, value * b.high};
  return {value, value * kWideLow, value * kWideHigh};
}

/// What lowering the stages says beyond the forecast.
struct Stages {
  ReplayedPeak peak;
  HostSeconds host;     ///< that the host needs to issue one micro-batch on the busiest stage
  double weights = 0;   ///< bytes of the trained weights of the fullest stage's rank, in bf16
  double gathered = 0;  ///< bytes that a pass over the stage gathers
  double copied = 0;    ///< bytes that FSDP2 copies out in a pass over the stage: its weights as they run
  double narrowed = 0;  ///< of these, of weights held in fp32
  double reduced = 0;   ///< bytes of the gradients, in bf16, that FSDP2 copies for the reduction
  double pairs = 0;     ///< adapter pairs of products
};

/// What PyTorch's per-operator checkpointing saves of a block (torchtitan, parallelize_llama.py): the first, third, ...
/// product and attention's result. Gate and up are two products there and one here, of which half is kept.
class PerOperator {
 public:
  explicit PerOperator(Block& block) : block_(block) {}

  void save(bool compiled, bool attention_again) {
    int products = 0;
    for (std::size_t n = 0; n < block_.forward.size(); ++n) {
      const OpCall* call = std::get_if<OpCall>(&block_.forward[n].call);
      if (!call || block_.forward[n].writes.empty()) continue;
      if (attention_again && std::holds_alternative<op::Attention>(call->op))
        for (const ValueId made : std::vector<ValueId>(block_.forward[n].writes)) forget(root(made));
      if (!std::holds_alternative<op::Linear>(call->op)) continue;
      const ValueId made = root(block_.forward[n].writes.front());
      if (feeds_glu(made)) {
        products += 2;
        if (const auto reader = forget(made)) add(n, 0.5, *reader);
      } else if (++products % 2 == 0) {
        forget(made);
      } else if (!compiled && !is_kept(made)) {  // eager, the result is cached whether or not it is read
        add(n, 1, block_.backward.size() - 1);
      }
    }
  }

 private:
  [[nodiscard]] ValueId root(ValueId v) const { return v < 0 ? -1 : block_.alias[static_cast<std::size_t>(v)]; }
  [[nodiscard]] bool holds(const std::vector<ValueId>& list, ValueId made) const {
    return std::any_of(list.begin(), list.end(), [&](ValueId v) { return root(v) == made; });
  }
  [[nodiscard]] bool is_kept(ValueId made) const { return holds(block_.kept, made); }
  [[nodiscard]] bool feeds_glu(ValueId made) const {
    return std::any_of(block_.forward.begin(), block_.forward.end(), [&](const BlockNode& node) {
      const OpCall* call = std::get_if<OpCall>(&node.call);
      return call && std::holds_alternative<op::Glu>(call->op) && holds(node.reads, made);
    });
  }
  /// Made again where the backward pass first reads it: that call, or nothing where it was not kept.
  std::optional<std::size_t> forget(ValueId made) {
    if (std::erase_if(block_.kept, [&](ValueId v) { return root(v) == made; }) == 0) return std::nullopt;
    for (std::size_t n = 0; n < block_.backward.size(); ++n) {
      if (!holds(block_.backward[n].reads, made)) continue;
      block_.backward[n].writes.push_back(made);
      return n;
    }
    return std::nullopt;
  }
  /// Keeps a share of what the n-th forward call made, until a backward call.
  void add(std::size_t n, double share, std::size_t reader) {
    const Value& made = block_.values[static_cast<std::size_t>(block_.forward[n].writes.front())];
    const auto bytes = static_cast<std::int64_t>(share * static_cast<double>(made.bytes().value));
    block_.values.push_back({.name = "saved", .shape = {bytes}, .dtype = DType::u8, .differentiable = false});
    block_.category.push_back(MemoryCategory::activations);
    const auto saved = static_cast<ValueId>(block_.values.size() - 1);
    block_.alias.push_back(saved);
    block_.forward[n].writes.push_back(saved);
    block_.backward[reader].reads.push_back(saved);
    block_.kept.push_back(saved);
  }

  Block& block_;
};

/// The stages whose buffers differ most: first, last, and the one that the forecast finds fullest. Played on the
/// device's memory, so that unused segments are given back before the answer is no; where it is no, without an end.
Stages walk_stages(const Case& c, int worst_stage, Bytes outside) {
  const int stages = c.plan.parallelism.pp;
  Plan plan = c.plan;
  plan.micro_batches = std::min<std::int64_t>(plan.micro_batches, stages + 2);
  Stages out;
  for (const int stage : std::set<int>{0, worst_stage, stages - 1}) {
    Program program = lower_unverified(c.problem, plan, stage * plan.parallelism.stage_ranks());
    if (c.every_second_product)
      for (Block& block : program.blocks)
        if (!block.backward.empty()) PerOperator(block).save(c.compiled, c.attention_again);
    const bool expandable = c.problem.runtime.expandable_segments;
    ReplayedPeak p = replay(program, c.problem, plan,
                            {.expandable_segments = expandable, .capacity = c.problem.cluster.device.memory - outside});
    out.peak.refused = out.peak.refused || p.refused;
    if (p.refused) p = replay(program, c.problem, plan, {.expandable_segments = expandable, .capacity = {}});
    out.peak.allocated = std::max(out.peak.allocated, p.allocated);
    out.peak.reserved = std::max(out.peak.reserved, p.reserved);
    double trained = 0, gathered = 0, copied = 0, narrowed = 0, reduced = 0, adapters = 0;
    for (const Slot& slot : program.slots) {
      const Block& block = program.blocks[static_cast<std::size_t>(slot.block)];
      gathered += static_cast<double>(slot.sharding.gathered.value);
      copied += static_cast<double>(ReplayFsdp::whole(block, c.problem.runtime, plan.parallelism).value);
      for (const Weight& w : block.weights) {
        adapters += w.adapter;
        const bool wide = w.dtype == DType::f32 || (w.trained && c.problem.runtime.master_weights);
        if (wide && ReplayFsdp::wraps(w, plan.parallelism)) narrowed += 2 * static_cast<double>(w.shape.elements());
        if (!w.trained || w.adapter) continue;
        trained += 2 * static_cast<double>(w.shape.elements());
        if (ReplayFsdp::wraps(w, plan.parallelism)) reduced += 2 * static_cast<double>(w.shape.elements());
      }
    }
    out.weights = std::max(out.weights, trained);
    out.gathered = std::max(out.gathered, gathered);
    out.copied = std::max(out.copied, copied);
    out.narrowed = std::max(out.narrowed, narrowed);
    out.reduced = std::max(out.reduced, reduced);
    out.pairs = std::max(out.pairs, adapters / 2);
    const HostSeconds host = host_seconds(program, c.problem.runtime, c.host);
    out.host.all = std::max(out.host.all, host.all);
    out.host.behind_counts = std::max(out.host.behind_counts, host.behind_counts);
  }
  return out;
}

/// Passes over whole gradients that no product hides: sums of micro-batches after the first, copies into and out of
/// reduction buckets, clearing the buffer for the next step, scaling it before a sum over data ranks; bytes an element
/// as the runtime's file counts them.
double gradient_passes(const Case& c, double weights) {
  const auto bytes = [&](const char* what) {
    const auto it = c.problem.runtime.traffic.find(what);
    return it == c.problem.runtime.traffic.end() ? 0.0 : it->second;
  };
  const DeviceSpec& device = c.problem.cluster.device;
  const Parallelism& p = c.plan.parallelism;
  const double scaled =
      static_cast<std::int64_t>(p.dp_shard) * p.dp_replicate * p.cp > 1 ? bytes("gradient_scaled") : 0;
  return weights / 2 *
         (bytes("gradient_copies") + bytes("gradient_zeroed") + scaled +
          bytes("gradient_sum") * static_cast<double>(c.plan.micro_batches - 1)) /
         (device.memory_bandwidth.value * device.achieved_bandwidth);
}

/// FSDP2's copies on the compute stream, in bytes of a weight in bf16: gathered weights out of the buffer that they
/// arrive in (read and written, in the forward and in the backward pass), bf16 gradients into the one that the reduction
/// reads. What goes into a gather, and what a reduction leaves, is copied on streams of their own; on one device, which
/// gathers nothing, what is held in fp32 is cast here (read 4 bytes an element, written 2). Where weights stay gathered
/// and gradients whole over a step's micro-batches, all of that once a step, and whole gradients are added up (4, 2 and
/// 4 bytes).
double fsdp_copies(const Case& c, const Stages& s) {
  if (!ReplayFsdp::used(c.problem, c.plan)) return 0;
  const DeviceSpec& device = c.problem.cluster.device;
  const bool alone = c.plan.parallelism.dp_shard * c.plan.parallelism.cp == 1;
  const bool wide = c.problem.runtime.reduce == DType::f32;
  const double weights = 2 * s.copied + (alone ? 3 * s.narrowed : 0);
  const double gradients = s.reduced * (wide ? 3 : 2), sums = s.reduced * (wide ? 5 : 3);
  const auto micro_batches = static_cast<double>(c.plan.micro_batches);
  const double bytes = c.problem.runtime.traffic.contains("copied_once")
                           ? weights + gradients + (micro_batches - 1) * sums
                           : micro_batches * (2 * weights + gradients);
  return bytes / (device.memory_bandwidth.value * device.achieved_bandwidth);
}

/// A head that goes over the vocabulary in pieces, operation by operation, in fp32: what it moves in
/// two passes beyond its products.
double head_in_pieces(const Case& c) {
  const auto bytes = c.problem.runtime.traffic.find("head_in_pieces");
  if (bytes == c.problem.runtime.traffic.end()) return 0;
  const DeviceSpec& device = c.problem.cluster.device;
  const double logits = static_cast<double>(c.plan.micro_batches * c.plan.micro_batch) *
                        static_cast<double>(c.problem.workload.sequence_length) / c.plan.parallelism.cp *
                        static_cast<double>(c.problem.model.vocabulary);
  return 2 * logits * bytes->second / (device.memory_bandwidth.value * device.achieved_bandwidth);
}

/// Each time that multi-token prediction runs: a head, its loss, and the product that joins a hidden state to an
/// embedding (2 h to h), at the rate that 16-bit products reach.
double extra_heads(const Case& c) {
  if (c.extra_heads == 0) return 0;
  const DeviceSpec& device = c.problem.cluster.device;
  const double tokens = static_cast<double>(c.plan.micro_batches * c.plan.micro_batch) *
                        static_cast<double>(c.problem.workload.sequence_length) /
                        (static_cast<double>(c.plan.parallelism.cp) * c.plan.parallelism.tp);
  const auto& traffic = c.problem.runtime.traffic;
  const double loss = traffic.contains("cross_entropy") ? traffic.at("cross_entropy") : 4;
  const auto hidden = static_cast<double>(c.problem.model.hidden),
             vocabulary = static_cast<double>(c.problem.model.vocabulary);
  return c.extra_heads * tokens *
         (6 * hidden * (vocabulary + 2 * hidden) /
              (device.peak.at("bf16").value * device.achieved_matmul * device.sustained) +
          2 * loss * vocabulary / (device.memory_bandwidth.value * device.achieved_bandwidth));
}

/// Biases that Megatron adds to each expert's rows one expert after another, in fp32 (megatron/core/transformer/moe/
/// experts.py, _apply_bias): `t + b * p`, one concatenation, a cast. Not in an iteration that is one graph.
double expert_bias(const Case& c) {
  const auto bytes = c.problem.runtime.traffic.find("expert_bias");
  if (bytes == c.problem.runtime.traffic.end() || c.host.graphs == Graphs::whole) return 0;
  const DeviceSpec& device = c.problem.cluster.device;
  const Parallelism& p = c.plan.parallelism;
  const double tokens = static_cast<double>(c.plan.micro_batches * c.plan.micro_batch) *
                        static_cast<double>(c.problem.workload.sequence_length) / (static_cast<double>(p.cp) * p.tp);
  double elements = 0;
  for (const LayerSpec& layer : c.problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer); moe && moe->bias)
        elements += tokens * static_cast<double>(moe->top_k * (moe->latent > 0 ? moe->latent : c.problem.model.hidden));
  return 2 * elements / p.pp * bytes->second / (device.memory_bandwidth.value * device.achieved_bandwidth);
}

/// PyTorch's ring of attention over context ranks, traced by torch.compile (torch/distributed/tensor/experimental/
/// _attention.py), beyond attention itself: keys and values of all heads, repeated before, are gathered in each pass and
/// waited for; their fp32 gradients go to the next rank after each of the ring's steps and are waited for; and results
/// are merged in fp32. Bytes of an element of queries, one kernel a merge: forward 10 a step (sum r4 w4, its part r2) and
/// 10 for a cast of the first and the last and the pair of keys and values; backward 30 a step (three sums) and 26.
double context_ring(const Case& c) {
  const Parallelism& p = c.plan.parallelism;
  if (!c.problem.runtime.traffic.contains("context_ring") || !c.compiled || p.cp < 2) return 0;
  const double tokens = static_cast<double>(c.plan.micro_batch * c.problem.workload.sequence_length) / p.cp;
  const double again = c.plan.recompute == Recompute::full ? 1 : 0;
  const Links links(c.problem.cluster, c.problem.runtime, {}, c.problem.profile);
  const auto gathered = [&](double bytes) {
    const CommCall call{.collective = Collective::all_gather, .payload = {std::llround(bytes)}};
    return links.price(call, {p.cp, p.tp}).median.value;
  };
  const DeviceSpec& device = c.problem.cluster.device;
  const double memory = device.memory_bandwidth.value * device.achieved_bandwidth;
  double seconds = 0;
  for (const LayerSpec& layer : c.problem.model.layers)
    for (const Sublayer& s : layer.sublayers) {
      const auto* a = std::get_if<GqaAttention>(&s.mixer);
      if (!a) continue;
      const double elements = tokens * static_cast<double>(a->heads * a->head_dim) / p.tp;
      // A gather of a step's bytes from each rank passes cp - 1 times what a step sends.
      const double sent = 8 * elements * p.cp * p.cp / (p.cp - 1);
      const double moved = (1 + again) * (10 * p.cp + 10) + 30 * p.cp + 26;
      seconds += (2 + again) * gathered(4 * elements * p.cp) + gathered(sent) + moved * elements / memory;
    }
  return static_cast<double>(c.plan.micro_batches) * seconds / p.pp;
}

/// Seconds of one collective over the ranks that share the weights; an all-reduce over all data ranks.
double collective(const Case& c, Collective kind, double bytes) {
  const Parallelism& p = c.plan.parallelism;
  const std::int64_t ranks =
      static_cast<std::int64_t>(p.dp_shard) * (kind == Collective::all_reduce ? p.dp_replicate : 1);
  if (ranks < 2 || bytes < 1) return 0;
  const Links links(c.problem.cluster, c.problem.runtime, {}, c.problem.profile);
  return links
      .price({.collective = kind, .payload = {std::llround(bytes)}}, {ranks, static_cast<std::int64_t>(p.tp) * p.cp})
      .median.value;
}

/// Share of the multiprocessors that a collective over the ranks that share the weights holds.
double lent(const Case& c, Collective kind) {
  const Links links(c.problem.cluster, c.problem.runtime, {}, c.problem.profile);
  const Parallelism& p = c.plan.parallelism;
  const std::int64_t ranks =
      static_cast<std::int64_t>(p.dp_shard) * (kind == Collective::all_reduce ? p.dp_replicate : 1);
  return links.lent({.collective = kind}, {ranks, static_cast<std::int64_t>(p.tp) * p.cp});
}

/// Where FSDP gathers a layer's weights only after the backward pass of the one before (BACKWARD_POST) nothing hides
/// that gather: the device waits for all weights once a micro-batch, and lends it no multiprocessors, as the forecast
/// has it.
double gathers_after_backward(const Case& c, const Stages& s) {
  if (!c.problem.runtime.traffic.contains("gathers_after_backward")) return 0;
  return static_cast<double>(c.plan.micro_batches) * collective(c, Collective::all_gather, s.gathered) *
         (1 - lent(c, Collective::all_gather));
}

/// Gradients that are summed over all data ranks, where the forecast has them scattered, hold multiprocessors for
/// longer.
double reduces_to_all(const Case& c, const Stages& s) {
  const Runtime& runtime = c.problem.runtime;
  if (!runtime.traffic.contains("reduces_to_all") || !runtime.overlap_reduce) return 0;
  const auto lends = [&](Collective kind) {
    return collective(c, kind, s.weights * (runtime.reduce == DType::f32 ? 2 : 1)) * lent(c, kind);
  };
  return std::max(0.0, lends(Collective::all_reduce) - lends(Collective::reduce_scatter));
}

/// FSDP lets the host be two of its units ahead of the device (limit_all_gathers), and PEFT's wrapping makes a unit of
/// each half of an adapter pair: while these pass, in forward, recompute and backward, the device waits for the host.
double pairs_apart(const Case& c, const Stages& s) {
  if (!c.problem.runtime.kept.contains("held_checkpoint")) return 0;
  return static_cast<double>(c.plan.micro_batches) * 3 * 2 * s.pairs * c.problem.runtime.host_call.value;
}

/// What sending each rank's updated share to the others by a broadcast of its own takes over one gather: a broadcast
/// passes the ring like a gather of its bytes, and each waits for the ring's whole latency.
double broadcasts_over_gather(const Case& c, double weights) {
  if (!c.problem.runtime.traffic.contains("gather_by_broadcast")) return 0;
  const int n = c.plan.parallelism.dp_shard;
  return std::max(
      0.0, n * collective(c, Collective::all_gather, weights / n) - collective(c, Collective::all_gather, weights));
}

}  // namespace

Prediction predict(const Case& said, const Words& words) {
  Case c = said;
  const auto outside_of = [](const Forecast& f) {
    return f.memory[MemoryCategory::runtime_context] + f.memory[MemoryCategory::communication];
  };
  Forecast f = forecast(c.problem, c.plan);
  Stages stages = walk_stages(c, f.worst_stage, outside_of(f));
  const auto try_again = [&] {
    f = forecast(c.problem, c.plan);
    stages = walk_stages(c, f.worst_stage, outside_of(f));
  };
  if (stages.peak.refused && c.paged_optimizer && c.plan.offload == Offload::none)
    c.plan.offload = Offload::optimizer, try_again();
  // A run recomputed at least what it had to: the first of none, selective and full that fits.
  for (const Recompute more : {Recompute::selective, Recompute::full})
    if (stages.peak.refused && c.recompute_unsaid) c.plan.recompute = more, try_again();
  const auto time = [&](TimeCategory t) { return f.time[static_cast<std::size_t>(t)].value; };
  double step = f.step.value;
  if (c.virtual_stages > 1) step -= time(TimeCategory::pipeline_bubble) * (1 - 1.0 / c.virtual_stages);
  if (c.every_second_product) step += 0.5 * time(TimeCategory::forward);
  if (c.overlaps_exchange)
    step -= c.problem.runtime.expert_overlap_hidden *
            std::min(time(TimeCategory::expert_communication),
                     time(TimeCategory::forward) + time(TimeCategory::backward) + time(TimeCategory::recompute));
  step += broadcasts_over_gather(c, stages.weights) + gradient_passes(c, stages.weights) + fsdp_copies(c, stages) +
          head_in_pieces(c) + extra_heads(c) + expert_bias(c) + context_ring(c) + gathers_after_backward(c, stages) + reduces_to_all(c, stages) + pairs_apart(c, stages);
  // A device that has less to do than the host to issue waits for it, micro-batch after micro-batch; interleaved stages
  // begin and end on a part of theirs.
  const double passes = static_cast<double>(c.plan.micro_batches) +
                        static_cast<double>(c.plan.parallelism.pp - 1) / std::max(1, c.virtual_stages);
  const double host = stages.host.all * passes;
  step = c.host.takes_turns ? step + host
                            : std::max(step + stages.host.behind_counts * passes, host + time(TimeCategory::optimizer));
  const auto bytes = [&](MemoryCategory k) { return static_cast<double>(f.memory[k].value); };
  const double outside = bytes(MemoryCategory::runtime_context) + bytes(MemoryCategory::communication);
  const double allocated = static_cast<double>(stages.peak.allocated.value),
               reserved = static_cast<double>(stages.peak.reserved.value);
  Prediction out;
  out.step = with_band(step, Measure::step_time, c, words);
  out.allocated = with_band(allocated, Measure::peak_allocated, c, words);
  out.reserved = with_band(reserved, Measure::peak_reserved, c, words);
  // Where live bytes fit, holes alone do not make a plan impossible: the order of allocations is only roughly known.
  out.fits = !stages.peak.refused || allocated + outside <= static_cast<double>(c.problem.cluster.device.memory.value);
  out.device = with_band(reserved + outside, Measure::peak_reserved, c, words);
  return out;
}

}  // namespace moeplan::validation
