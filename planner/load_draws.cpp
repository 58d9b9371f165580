#include "planner/load_draws.hpp"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.hpp"
#include "planner/drawn_memory.hpp"
#include "planner/load_factors.hpp"
#include "planner/load_spread.hpp"
#include "planner/prices.hpp"
#include "planner/scheduled.hpp"
#include "sim/cost/column_copies.hpp"
#include "sim/cost/groups.hpp"
#include "sim/load/placement.hpp"
#include "sim/load/random.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/staging.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Busiest rank over the mean at which blocks are lowered; between them times and bytes are taken as linear, beyond the last too.
constexpr std::array kFactors{0.25, 1.0, 1.5, 2.0, 3.0, 4.5, 6.75, 10.0};
/// Draws of gamma variates that a call may cost: a fraction of a second. Longer steps repeat the micro-batches drawn.
constexpr std::int64_t kMostVariates = 6'000'000;

/// One layer kind over the factors.
struct KindCurve {
  std::vector<Block> blocks;
  std::vector<BlockTime> time;
  KindBytes bytes;
  bool routed = false;
};

struct Routing {
  std::int64_t layers = 0, experts = 0, top_k = 1, groups = 1;
  std::vector<std::int64_t> moe_of;   ///< per decoder layer its place among the MoE layers; -1
};

Routing routing_of(const ModelSpec& model) {
  Routing r;
  for (const LayerSpec& layer : model.layers) {
    bool routed = false;
    for (const Sublayer& s : layer.sublayers)
      if (const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer)) routed = true, r.experts = moe->experts, r.top_k = moe->top_k, r.groups = std::max<std::int64_t>(1, moe->groups);
    r.moe_of.push_back(routed ? r.layers++ : -1);
  }
  return r;
}

PassTime between(const PassTime& a, const PassTime& b, double t) {
  PassTime out = a;
  out.total.value += t * (b.total.value - a.total.value);
  out.exposed.value += t * (b.exposed.value - a.exposed.value);
  return out;
}

class Draws {
 public:
  Draws(const Problem& problem, const Plan& plan, const LoadDrawOptions& options)
      : problem_(problem), plan_(plan), options_(options), routing_(routing_of(problem.model)), prices_(prices_of(problem, plan)),
        links_(problem.cluster, problem.runtime, {}, problem.profile), outline_(outline(problem.model, problem.workload)) {
    const Parallelism& par = plan.parallelism;
    if (options.draws < 1) throw InputError("--draws", fmt::format("{}", options.draws), "give at least one draw");
    ranks_ = routing_.experts > 0 ? par.ep : 1;
    const std::int64_t of_group = static_cast<std::int64_t>(par.ep) * par.etp, of_sequence = static_cast<std::int64_t>(par.tp) * par.cp;
    sampling_ = {.sequences = std::max<std::int64_t>(1, plan.micro_batch * of_group / of_sequence), .sequence_length = problem.workload.sequence_length, .top_k = routing_.top_k};
    source_ = sampling_;
    source_.sequences = plan.micro_batch;
    source_.sequence_length = std::max<std::int64_t>(1, problem.workload.sequence_length / of_sequence);
    flat_ = std::holds_alternative<UniformLoad>(problem.load.distribution);
    const std::int64_t per_micro_batch = options.draws * std::max<std::int64_t>(1, routing_.layers * routing_.experts);
    distinct_ = flat_ ? 1 : std::min(plan.micro_batches, std::max<std::int64_t>(2, kMostVariates / per_micro_batch));
    served_ = plan.experts;
    if (options.balanced && served_.placement == ExpertPlacement::contiguous) served_.placement = ExpertPlacement::balanced;
    served_.replicas += options.extra_slots;
    if (options.capacity_factor) served_.capacity_factor = options.capacity_factor;
    prices_ = prices_.spread_as(load_spread(problem, served_, par));
    links_ = links_.placed(expert_places(problem.model, served_, par, problem.cluster));
    place();
    lower_stages();
  }

  LoadDraws run() {
    LoadDraws out;
    out.seed = problem_.load.seed;
    out.draws = options_.draws;
    out.load = problem_.load.name;
    out.placed_on = options_.placed_on ? options_.placed_on->name : problem_.load.name;
    out.served = served_;
    out.micro_batches_drawn = distinct_;
    std::vector<OneDraw> draws(index(options_.draws));
    tbb::parallel_for(std::size_t{0}, draws.size(), [&](std::size_t d) { draws[d] = draw(static_cast<std::uint64_t>(d)); });
    double busiest = 0;
    for (const OneDraw& d : draws) {
      out.step.push_back(d.step);
      out.peak.push_back(d.peak);
      out.out_of_memory += d.peak > static_cast<double>(problem_.cluster.device.memory.value);
      out.dropped += d.dropped;
      busiest += d.busiest;
    }
    const double n = static_cast<double>(draws.size());
    out.out_of_memory /= n;
    out.dropped /= n;
    out.busiest = busiest / n;
    for (const StageBytes& s : memory_) out.replicas = std::max(out.replicas, Bytes{static_cast<std::int64_t>(s.replicas)});
    std::sort(out.step.begin(), out.step.end());
    std::sort(out.peak.begin(), out.peak.end());
    return out;
  }

 private:
  struct OneDraw {
    double step = 0, peak = 0, dropped = 0, busiest = 1;
  };
  struct StageTurns {
    std::vector<Turn> turns;
    std::vector<std::vector<Instance>> issued;   ///< per turn
    std::vector<double> gather, reduce;          ///< per slot
    std::vector<SlotDelays> late;                ///< per slot, at the balanced load
    std::vector<const KindCurve*> kinds;
    std::vector<std::int64_t> moe;               ///< per slot: place among the MoE layers; -1
    double optimizer = 0;
  };

  void place() {
    if (routing_.experts == 0) return;
    if (served_.placement == ExpertPlacement::contiguous && options_.extra_slots > 0)
      throw InputError("--replicas", fmt::format("{} with experts placed contiguously", options_.extra_slots), "add --placement balanced");
    const LoadModel& planned = options_.placed_on ? *options_.placed_on : problem_.load;
    const auto shares = expert_shares(planned, routing_.layers, routing_.experts);
    for (const Shares& s : shares) placement_.push_back(placed(served_, s, routing_.groups, plan_.parallelism, problem_.cluster));
  }

  [[nodiscard]] double collective(Collective what, Group group, Bytes payload) const {
    const GroupShape where = group_shape(group, plan_.parallelism);
    if (where.size <= 1 || payload.value <= 0) return 0;
    return links_.price(CommCall{.collective = what, .group = group, .payload = payload}, where, 1.0).median.value;
  }

  /// Seconds over the host link, one direction.
  [[nodiscard]] double copied(Bytes payload) const {
    return payload.value <= 0 ? 0.0 : links_.price({.collective = Collective::from_host, .group = Group::world, .payload = payload}, {}).median.value;
  }

  [[nodiscard]] Estimate price(const BlockNode& node, double skew) const {
    if (const OpCall* op = std::get_if<OpCall>(&node.call)) return prices_.price(*op);
    if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return links_.price(*comm, group_shape(comm->group, plan_.parallelism), skew);
    return links_.host_wait(group_shape(Group::expert, plan_.parallelism));
  }

  const KindCurve& kind(std::int32_t layer) {
    bool before = false;
    for (std::int32_t l = -1; l < layer; ++l) before = before || outline_.trained[index(l + 1)];
    const auto layers = static_cast<std::int32_t>(problem_.model.layers.size());
    const std::string name = (layer < 0 ? "embedding" : layer == layers ? "head" : outline_.kinds[index(layer)]) + (before ? "" : " (first trained)");
    const auto [it, fresh] = kinds_.try_emplace(name);
    KindCurve& k = it->second;
    if (!fresh) return k;
    k.routed = layer >= 0 && layer < layers && routing_.moe_of[index(layer)] >= 0 && ranks_ > 1;
    Plan as_served = plan_;
    as_served.experts = served_;
    for (const double factor : kFactors) {
      if (!k.routed && factor != 1.0) continue;
      k.blocks.push_back(lower_slot(problem_, plan_, outline_, layer, factor));
      const PriceCall loaded = [&](const BlockNode& n) { return price(n, factor); };
      k.time.push_back(block_time(k.blocks.back(), prices_, loaded, lent_to(links_, plan_.parallelism)));
      k.bytes.add(block_memory(k.blocks.back(), problem_, as_served));
    }
    return k;
  }

  /// What gathers and reductions beside them add to a kind's passes.
  [[nodiscard]] SlotDelays late(const KindCurve& k, const SlotSharding& cut) const {
    const Block& block = k.blocks[k.routed ? 1 : 0];
    const BlockTime& took = k.time[k.routed ? 1 : 0];
    const auto moved = [&](const std::vector<BlockNode>& nodes, const PassTime& pass) {
      std::vector<double> seconds;
      for (const BlockNode& n : nodes) seconds.push_back(std::holds_alternative<CommCall>(n.call) ? price(n, 1.0).median.value : 0);
      return transfers(nodes, seconds, pass, links_, plan_.parallelism);
    };
    return slot_delays(took.forward.total.value, took.backward.total.value,
                       slot_crossings(problem_.runtime, ports_, links_, plan_.parallelism, cut, moved(block.forward, took.forward), moved(block.backward, took.backward)));
  }

  void lower_stages() {
    const Parallelism& par = plan_.parallelism;
    const auto layers = static_cast<std::int32_t>(problem_.model.layers.size());
    Bytes crossing{};
    for (int stage = 0; stage < par.pp; ++stage) {
      StageTurns s;
      StageBytes m;
      m.kept_ways = static_cast<double>(kept_ways(plan_));
      std::vector<IssueSlot> slots;
      std::vector<IssueChunk> chunks;
      StateBytes state = stage == 0 ? idle_state(problem_, plan_) : StateBytes{};
      for (int c = 0; c < plan_.virtual_stages; ++c) {
        const LayerRange range = chunk_layers(plan_, stage, c);
        const bool begins = stage == 0 && c == 0, ends = range.end == layers;
        IssueChunk chunk{.first = static_cast<std::int32_t>(slots.size()), .leaving = {ends ? 0 : 1}};
        ChunkMemory held{.first = chunk.first, .ends_model = ends};
        for (std::int32_t layer = begins ? -1 : range.first; layer < range.end + (ends ? 1 : 0); ++layer) {
          const KindCurve& k = kind(layer);
          const Block& block = k.blocks[k.routed ? 1 : 0];
          const SlotSharding cut = slot_sharding(block, problem_, plan_);
          const StateBytes own = state_bytes(block, problem_, plan_);
          const SlotCollectives moved = slot_collectives(links_, par, cut);
          s.gather.push_back(copied(cut.host_fetch) + moved.gather);
          s.reduce.push_back(moved.reduce);
          s.late.push_back(late(k, cut));
          s.kinds.push_back(&k);
          s.moe.push_back(k.routed ? routing_.moe_of[index(layer)] : -1);
          slots.push_back({.gathers = cut.gathered.value > 0, .reduces = cut.reduces(), .backward = !block.backward.empty(),
                           .weight_backward = !block.weight_backward.empty()});
          m.slots.push_back({&k.bytes, slot_memory(block, cut), s.moe.back()});
          m.slots.back().fixed.chunk = c;
          state += own;
          if (k.routed && options_.extra_slots > 0) m.replicas += replica_bytes(block);
        }
        chunk.end = held.end = static_cast<std::int32_t>(slots.size());
        const Block& entrance = s.kinds[index(chunk.first)]->blocks[s.kinds[index(chunk.first)]->routed ? 1 : 0];
        for (std::size_t i = 0; i < entrance.inputs.size() && !begins; ++i) {
          const Bytes b = entrance.values[index(entrance.inputs[i])].bytes();
          chunk.entering += b;
          if (i > 0) held.carried += b;
        }
        crossing = std::max(crossing, chunk.entering);
        chunks.push_back(chunk);
        m.chunks.push_back(held);
      }
      s.turns = turns(plan_, stage);
      Issuer issuer(plan_, slots, chunks);
      for (const Turn& t : s.turns) issuer.issue(t, s.issued.emplace_back());
      if (state.trained_elements > 0) s.optimizer = prices_.price(optimizer_call(state, problem_.workload.optimizer)).median.value;
      s.optimizer = std::max(s.optimizer, copied(optimizer_copy(state).payload));
      // What memory holds repeats after the warm-up (planner/scheduled.cpp).
      Plan few = plan_;
      few.micro_batches = std::min<std::int64_t>(plan_.micro_batches, std::max<std::int64_t>(4 * par.pp, distinct_ / par.pp * par.pp));
      Issuer again(few, slots, chunks);
      for (const Turn& t : turns(few, stage)) again.issue(t, m.instances);
      const MemoryBreakdown standing = standing_memory(state, problem_, plan_);
      m.outside_allocator = static_cast<double>((standing[MemoryCategory::runtime_context] + standing[MemoryCategory::communication]).value);
      m.standing = static_cast<double>(standing.peak().value) - m.outside_allocator;
      time_pairs(s);
      memory_.push_back(std::move(m));
      stages_.push_back(std::move(s));
    }
    exchange_ = collective(Collective::send_receive, Group::pipeline, crossing);
  }

  /// A rank holds extra_slots / ranks more experts of the layer: their weights and, where trained, gradients and states.
  double replica_bytes(const Block& block) const {
    Block experts;
    for (const Weight& w : block.weights)
      if (w.split == WeightSplit::expert || w.split == WeightSplit::expert_row) experts.weights.push_back(w);
    const StateBytes s = state_bytes(experts, problem_, plan_);
    const double all = static_cast<double>((s.weights + s.adapters + s.gradients + s.optimizer).value);
    return all * static_cast<double>(options_.extra_slots) / static_cast<double>(routing_.experts + plan_.experts.replicas);
  }

  OneDraw draw(std::uint64_t d) const {
    OneDraw out;
    // Without counts on the host a buffer takes every expert's full capacity (planner/load_factors.cpp).
    DrawnRows rows{.ranks = ranks_, .layers = routing_.layers, .distinct = distinct_, .of = {}, .buffer = std::min(plan_.experts.capacity_factor.value_or(0), static_cast<double>(ranks_))};
    std::vector<double> busiest(index(routing_.layers * distinct_), 1.0);
    if (ranks_ > 1 || (routing_.experts > 0 && served_.capacity_factor)) {
      rows.of.resize(index(routing_.layers * distinct_ * ranks_));
      const auto population = expert_shares(problem_.load, routing_.layers, routing_.experts, d);
      double sum = 0;
      for (std::int64_t l = 0; l < routing_.layers; ++l)
        for (std::int64_t j = 0; j < distinct_; ++j) {
          const std::uint64_t item = 0x10000u + static_cast<std::uint64_t>(l * distinct_ + j);
          Shares shares = flat_ ? population[index(l)] : realised(population[index(l)], sampling_, seed_of(problem_.load.seed, item, d));
          if (served_.capacity_factor) out.dropped += cap(shares, population[index(l)], seed_of(problem_.load.seed, item + 0x40000000u, d));
          const auto loads = rank_loads(shares, placement_[index(l)]);
          double most = 0;
          for (std::int64_t r = 0; r < ranks_; ++r) {
            rows.of[index((l * distinct_ + j) * ranks_ + r)] = loads[index(r)];
            most = std::max(most, loads[index(r)]);
          }
          busiest[index(l * distinct_ + j)] = most;
          sum += most;
        }
      const double items = static_cast<double>(routing_.layers * distinct_);
      out.busiest = sum / items;
      out.dropped /= items;
    }
    out.step = step(busiest);
    for (const StageBytes& s : memory_) out.peak = std::max(out.peak, drawn_peak(s, rows, problem_.runtime.allocator_overhead, kFactors));
    return out;
  }

  /// Takes the group's shares to the capacity (cut, rerouted or padded); returns the share that one source drops of its own batch.
  double cap(Shares& shares, const Shares& population, std::uint64_t seed) const {
    const double copies = static_cast<double>(source_.sequences * source_.sequence_length * source_.top_k);
    const double most = static_cast<double>(expert_capacity(source_.sequences * source_.sequence_length, source_.top_k, routing_.experts, *served_.capacity_factor)) / copies;
    const bool reroute = served_.overflow == Overflow::reroute;
    shares = capped(shares, most * static_cast<double>(routing_.experts), reroute, served_.pad);
    if (reroute) return 0;
    double dropped = 0;
    for (const double s : flat_ ? population : realised(population, source_, seed)) dropped += std::max(0.0, s - most);
    return dropped;
  }

  double step(const std::vector<double>& busiest) const {
    std::vector<std::vector<Turn>> order;
    double tail = 0;
    for (const StageTurns& s : stages_) {
      order.push_back(s.turns);
      tail = std::max(tail, s.optimizer);
    }
    TurnTime now;
    return tail + turns_seconds(order, plan_.virtual_stages, exchange_, [&](std::size_t stage, std::size_t k) -> const TurnTime& {
      const StageTurns& s = stages_[stage];
      const auto factor = [&](std::int32_t slot, std::int32_t j) { return s.moe[index(slot)] < 0 ? 1.0 : busiest[index(s.moe[index(slot)] * distinct_ + j % distinct_)]; };
      now = turn_time(
          s.issued[k], [&](const Instance& x) { return pass(s, x, factor); }, [&](std::int32_t slot) { return s.gather[index(slot)]; },
          [&](std::int32_t slot) { return s.reduce[index(slot)]; }, [&](const Instance& x, double took, Gathered gathered) { return late_of(x, [&](std::int32_t slot) -> const SlotDelays& { return s.late[index(slot)]; }, took, gathered, plan_.prefetch > 0); });
      return now;
    });
  }

  template <class Factor>
  PassTime pass(const StageTurns& s, const Instance& x, const Factor& factor) const {
    const KindCurve& k = *s.kinds[index(x.slot)];
    const auto at = [&](const auto& of, double f) {
      const std::size_t n = k.time.size();
      if (n == 1) return of(0);
      const Between b = between_factors(f, kFactors);
      return between(of(b.low), of(b.low + 1), b.share);
    };
    const double f = factor(x.slot, x.micro_batch);
    switch (x.phase) {
      case Phase::forward: return at([&](std::size_t i) { return k.time[i].forward; }, f);
      case Phase::backward: return at([&](std::size_t i) { return k.time[i].backward; }, f);
      case Phase::weight_backward: return at([&](std::size_t i) { return k.time[i].weight_backward; }, f);
      default: break;
    }
    // Side by side: at the mean of the two passes' factors.
    const std::vector<PassTime>& pair = pairs_.at({s.kinds[index(x.forward_slot)], &k});
    if (pair.size() == 1) return pair[0];
    const Between b = between_factors((f + factor(x.forward_slot, x.forward_micro_batch)) / 2, kFactors);
    return between(pair[b.low], pair[b.low + 1], b.share);
  }

  /// Times of the pairs that a stage issues side by side, at each factor.
  void time_pairs(const StageTurns& s) {
    for (const auto& issued : s.issued)
      for (const Instance& x : issued) {
        if (x.phase != Phase::forward_backward) continue;
        const KindCurve &f = *s.kinds[index(x.forward_slot)], &b = *s.kinds[index(x.slot)];
        const auto [it, fresh] = pairs_.try_emplace({&f, &b});
        if (!fresh) continue;
        for (std::size_t i = 0; i < std::max(f.blocks.size(), b.blocks.size()); ++i) {
          const double skew = f.routed || b.routed ? kFactors[i] : 1.0;
          const Block both = side_by_side(f.blocks[f.routed ? i : 0], b.blocks[b.routed ? i : 0]);
          const PriceCall loaded = [&](const BlockNode& n) { return price(n, skew); };
          it->second.push_back(block_time(both, prices_, loaded, lent_to(links_, plan_.parallelism)).forward);
        }
      }
  }

  const Problem& problem_;
  const Plan& plan_;
  const LoadDrawOptions& options_;
  Routing routing_;
  Prices prices_;
  Links links_;
  Ports ports_{problem_.cluster};
  ModelOutline outline_;
  ExpertExchange served_;
  std::int64_t ranks_ = 1, distinct_ = 1;
  bool flat_ = false;
  Sampling sampling_, source_;
  std::vector<Placement> placement_;
  std::map<std::string, KindCurve> kinds_;
  std::map<std::pair<const KindCurve*, const KindCurve*>, std::vector<PassTime>> pairs_;
  std::vector<StageTurns> stages_;
  std::vector<StageBytes> memory_;
  double exchange_ = 0;
};

double at_quantile(const std::vector<double>& ascending, double q) { return ascending.at(index(std::lround(q * static_cast<double>(ascending.size() - 1)))); }

}  // namespace

double LoadDraws::step_at(double quantile) const { return at_quantile(step, quantile); }
double LoadDraws::peak_at(double quantile) const { return at_quantile(peak, quantile); }

LoadDraws draw_load(const Problem& problem, const Plan& plan, const LoadDrawOptions& options) { return Draws(problem, plan, options).run(); }

}  // namespace moeplan
