#include "planner/scheduled.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "sim/cost/column_copies.hpp"
#include "sim/cost/groups.hpp"
#include "sim/memory/memory.hpp"
#include "sim/program/call_scratch.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// One slot as timing sees it, seconds.
struct SlotTime {
  const Block* block = nullptr;
  BlockTime time;
  double gather = 0, reduce = 0;
  SlotDelays late;
};

/// One load level of one stage.
class StageClock {
 public:
  StageClock(const Plan& plan, std::vector<SlotTime> slots, std::vector<IssueSlot> issue, std::vector<IssueChunk> chunks, const PriceCall& price, const Prices& prices, LentTo lent)
      : slots_(std::move(slots)), issuer_(plan, std::move(issue), std::move(chunks)), price_(price), prices_(prices), lent_(std::move(lent)), ahead_(plan.prefetch > 0) {}

  const TurnTime& time(const Turn& t) {
    const auto [it, fresh] = known_.try_emplace({t.kind, t.chunk, t.forward_chunk, issuer_.gathered()});
    if (fresh) {
      std::vector<Instance> list;
      issuer_.issue(t, list);
      it->second = {walk(list), issuer_.gathered()};
    }
    issuer_.set_gathered(it->second.second);
    return it->second.first;
  }

 private:
  const PassTime& pair(std::int32_t f, std::int32_t b) {
    const Block *forward = slots_[index(f)].block, *backward = slots_[index(b)].block;
    const auto [it, fresh] = pairs_.try_emplace({forward, backward});
    if (fresh) it->second = block_time(side_by_side(*forward, *backward), prices_, price_, lent_).forward;
    return it->second;
  }

  TurnTime walk(const std::vector<Instance>& list) {
    return turn_time(
        list,
        [&](const Instance& x) {
          const BlockTime& t = slots_[index(x.slot)].time;
          return x.phase == Phase::forward_backward ? pair(x.forward_slot, x.slot) : x.phase == Phase::forward ? t.forward : x.phase == Phase::backward ? t.backward : t.weight_backward;
        },
        [&](std::int32_t s) { return slots_[index(s)].gather; }, [&](std::int32_t s) { return slots_[index(s)].reduce; },
        [&](const Instance& x, double took, Gathered gathered) { return late_of(x, [&](std::int32_t s) -> const SlotDelays& { return slots_[index(s)].late; }, took, gathered, ahead_); });
  }

  std::vector<SlotTime> slots_;
  Issuer issuer_;
  const PriceCall& price_;
  const Prices& prices_;
  LentTo lent_;
  bool ahead_;
  std::map<std::tuple<Turn::Kind, std::int32_t, std::int32_t, std::vector<bool>>, std::pair<TurnTime, std::vector<bool>>> known_;
  std::map<std::pair<const Block*, const Block*>, PassTime> pairs_;
};

/// A layer kind lowered at the loads that time and memory ask for.
struct LoweredKind {
  Block time50, time95;
  BlockMemory memory50, memory95;
  Block buffers50, buffers95;          ///< of the memory
  std::array<Bytes, kMemoryCategories> kept{}, put_off{};   ///< at the balanced load
  BlockTime took50, took95;
  std::vector<Transfer> forward_transfers, backward_transfers;   ///< at the median load, where links and multiprocessors are shared
};

}  // namespace

struct ScheduledKinds {
  bool split = false;                                            ///< backward passes are split
  std::map<std::string, std::unique_ptr<LoweredKind>> by_name;
  std::vector<const LoweredKind*> by_slot;                       ///< of the model: embedding, layers, head
};

namespace {

class Scheduled {
 public:
  Scheduled(const ScheduledContext& c, const Plan& plan, ScheduledKinds& kinds) : c_(c), plan_(plan), kinds_(kinds), band_(c.load.stage(plan, 0, layers())) {
    price50_ = [this](const BlockNode& n) { return price(n, band_.p50.step); };
    price95_ = [this](const BlockNode& n) { return price(n, band_.p95.step); };
  }

  void apply(Forecast& out) {
    const int p = plan_.parallelism.pp;
    std::vector<std::vector<Turn>> order;
    std::vector<StageClock> at50, at95;
    std::vector<double> busy(static_cast<std::size_t>(p), 0), blocks = busy, exposed = busy, optimizer = busy;
    Bytes crossing{};
    for (int stage = 0; stage < p; ++stage) {
      order.push_back(turns(plan_, stage));
      const Stage s = lower_stage(stage);
      for (const IssueChunk& chunk : s.chunks) crossing = std::max(crossing, chunk.entering);
      at50.emplace_back(plan_, s.time50, s.issue, s.chunks, price50_, c_.prices, lent());
      at95.emplace_back(plan_, s.time95, s.issue, s.chunks, price95_, c_.prices, lent());
      take_memory(s, stage, out);
      const StateBytes& state = s.memory50.state;
      const double stepped = state.trained_elements > 0 ? c_.prices.price(optimizer_call(state, c_.problem.workload.optimizer)).median.value : 0.0;
      optimizer[static_cast<std::size_t>(stage)] = std::max(stepped, copied(optimizer_copy(state).payload)) + once_a_step(s);
    }
    const double exchange = collective(Collective::send_receive, Group::pipeline, crossing);
    const double tail = *std::max_element(optimizer.begin(), optimizer.end()) + c_.problem.runtime.step_overhead.value;
    const double step = turns_seconds(order, plan_.virtual_stages, exchange, [&](std::size_t s, std::size_t k) -> const TurnTime& {
      const TurnTime& t = at50[s].time(order[s][k]);
      busy[s] += t.duration, blocks[s] += t.blocks, exposed[s] += t.exposed;
      return t;
    });
    const double step95 = turns_seconds(order, plan_.virtual_stages, exchange, [&](std::size_t s, std::size_t k) -> const TurnTime& { return at95[s].time(order[s][k]); });
    out.step = {step + tail};
    out.step_p95 = {step95 + tail};
    const auto pace = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    put_times(out, static_cast<int>(pace), blocks[pace], exposed[pace], busy[pace], exchange, step, tail);
  }

 private:
  struct Stage {
    std::vector<SlotTime> time50, time95;
    std::vector<IssueSlot> issue;
    std::vector<IssueChunk> chunks;
    ListMemory memory50, memory95;
    std::vector<const LoweredKind*> kinds;
    std::vector<SlotCollectives> once;
  };

  /// What crosses the network once a step: the reduction hides under the last backward pass but for its first slot, the gathering of
  /// updated weights under the first forward pass but for that slot.
  [[nodiscard]] double once_a_step(const Stage& s) const {
    const Runtime& runtime = c_.problem.runtime;
    double forward = 0, backward = 0;
    SlotCollectives all;
    for (std::size_t i = 0; i < s.kinds.size(); ++i) {
      const BlockTime& t = s.kinds[i]->took50;
      forward += t.forward.total.value;
      backward += t.backward.total.value + t.weight_backward.total.value;
      all += s.once[i];
    }
    return (runtime.overlap_reduce ? all.reduce_waited(s.once.front(), backward) : all.reduce) + (runtime.overlap_gather ? all.gather_waited(s.once.front(), forward) : all.gather);
  }

  [[nodiscard]] std::int64_t layers() const { return static_cast<std::int64_t>(c_.problem.model.layers.size()); }

  [[nodiscard]] Estimate price(const BlockNode& node, double skew) const {
    if (const OpCall* op = std::get_if<OpCall>(&node.call)) return c_.prices.price(*op);
    if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return c_.links.price(*comm, group_shape(comm->group, plan_.parallelism), skew);
    return c_.links.host_wait(group_shape(Group::expert, plan_.parallelism));
  }
  [[nodiscard]] LentTo lent() const { return c_.ports ? lent_to(c_.links, plan_.parallelism) : LentTo{}; }
  [[nodiscard]] double collective(Collective what, Group group, Bytes payload) const {
    const GroupShape where = group_shape(group, plan_.parallelism);
    if (where.size <= 1 || payload.value <= 0) return 0;
    return c_.links.price(CommCall{.collective = what, .group = group, .payload = payload}, where, 1.0).median.value;
  }

  /// Seconds over the host link, one direction.
  [[nodiscard]] double copied(Bytes payload) const {
    return payload.value <= 0 ? 0.0 : c_.links.price({.collective = Collective::from_host, .group = Group::world, .payload = payload}, {}).median.value;
  }

  const LoweredKind& kind(std::int32_t layer) {
    const LoweredKind*& known = kinds_.by_slot[index(layer + 1)];
    if (!known) known = &named_kind(layer);
    return *known;
  }

  const LoweredKind& named_kind(std::int32_t layer) {
    bool before = false;
    for (std::int32_t l = -1; l < layer; ++l) before = before || c_.outline.trained[index(l + 1)];
    const std::string name = (layer < 0 ? "embedding" : layer == layers() ? "head" : c_.outline.kinds[index(layer)]) + (before ? "" : " (first trained)");
    std::unique_ptr<LoweredKind>& k = kinds_.by_name[name];
    if (k) return *k;
    k = std::make_unique<LoweredKind>();
    const auto lowered = [&](double scale) { return lower_slot(c_.problem, plan_, c_.outline, layer, scale); };
    k->time50 = lowered(band_.p50.step);
    k->time95 = lowered(band_.p95.step);
    k->buffers50 = lowered(band_.p50.buffer);
    k->buffers95 = lowered(band_.p95.buffer);
    k->memory50 = block_memory(k->buffers50, c_.problem, plan_);
    k->memory95 = block_memory(k->buffers95, c_.problem, plan_);
    const BlockMemory balanced = block_memory(lowered(1.0), c_.problem, plan_);
    k->kept = balanced.kept;
    k->put_off = balanced.put_off;
    k->took50 = block_time(k->time50, c_.prices, price50_, lent());
    k->took95 = block_time(k->time95, c_.prices, price95_, lent());
    const auto moved = [&](const std::vector<BlockNode>& nodes, const PassTime& took) {
      std::vector<double> seconds;
      for (const BlockNode& n : nodes) seconds.push_back(std::holds_alternative<CommCall>(n.call) ? price50_(n).median.value : 0);
      return transfers(nodes, seconds, took, c_.links, plan_.parallelism);
    };
    if (c_.ports) k->forward_transfers = moved(k->time50.forward, k->took50.forward), k->backward_transfers = moved(k->time50.backward, k->took50.backward);
    return *k;
  }

  /// What data sharding makes of a kind under this plan.
  struct Sharding {
    SlotSharding cut;
    StateBytes state;
    double gather = 0, reduce = 0;
    SlotCollectives once{};
    SlotDelays late50{}, late95{};
  };
  const Sharding& sharding(const LoweredKind& k) {
    const auto [it, fresh] = sharding_.try_emplace(&k);
    Sharding& s = it->second;
    if (!fresh) return s;
    const Parallelism& par = plan_.parallelism;
    s.cut = slot_sharding(k.time50, c_.problem, plan_);
    s.state = state_bytes(k.time50, c_.problem, plan_);
    const Runtime& runtime = c_.problem.runtime;
    const SlotCollectives moved = slot_collectives(c_.links, par, s.cut);
    (runtime.distributed_optimizer ? s.once.gather : s.gather) = moved.gather;
    (runtime.reduce_once ? s.once.reduce : s.reduce) = moved.reduce;
    if (c_.ports && runtime.distributed_optimizer) s.once.gather_lends = moved.gather_lends;
    if (c_.ports && runtime.reduce_once) s.once.reduce_lends = moved.reduce_lends;
    s.gather += copied(s.cut.host_fetch);
    if (!c_.ports || (k.forward_transfers.empty() && k.backward_transfers.empty())) return s;
    const double forward = k.took50.forward.total.value, backward = k.took50.backward.total.value;
    s.late50 = slot_delays(forward, backward, slot_crossings(runtime, *c_.ports, c_.links, par, s.cut, k.forward_transfers, k.backward_transfers));
    const double more_forward = forward > 0 ? k.took95.forward.total.value / forward : 0, more_backward = backward > 0 ? k.took95.backward.total.value / backward : 0;
    s.late95 = {s.late50.forward * more_forward, s.late50.backward * more_backward, s.late50.reduced * more_backward, s.late50.beside};
    return s;
  }

  /// What is kept grows linearly with the rows of the hottest rank.
  [[nodiscard]] std::array<Bytes, kMemoryCategories> grown(const std::array<Bytes, kMemoryCategories>& one, const std::array<Bytes, kMemoryCategories>& more, double factor) const {
    std::array<Bytes, kMemoryCategories> out = one;
    if (band_.p95.buffer > 1)
      for (std::size_t i = 0; i < out.size(); ++i) out[i].value += std::llround(static_cast<double>(more[i].value - one[i].value) * (factor - 1) / (band_.p95.buffer - 1));
    return out;
  }

  Stage lower_stage(int stage) {
    Stage s;
    const int p = plan_.parallelism.pp;
    if (stage == 0) s.memory50.state = s.memory95.state = idle_state(c_.problem, plan_);
    for (int c = 0; c < plan_.virtual_stages; ++c) {
      const LayerRange range = chunk_layers(plan_, stage, c);
      const bool begins = stage == 0 && c == 0, ends = stage + 1 == p && c + 1 == plan_.virtual_stages;
      const FactorBand load = c_.load.stage(plan_, range.first, range.end);
      IssueChunk chunk{.first = static_cast<std::int32_t>(s.issue.size())};
      ChunkMemory held{.first = chunk.first, .ends_model = ends};
      for (std::int32_t layer = begins ? -1 : range.first; layer < range.end + (ends ? 1 : 0); ++layer) add_slot(s, layer, c, load);
      chunk.end = held.end = static_cast<std::int32_t>(s.issue.size());
      const Block& entrance = *s.time50[index(chunk.first)].block;
      for (std::size_t i = 0; i < entrance.inputs.size() && !begins; ++i) {
        const Bytes b = entrance.values[index(entrance.inputs[i])].bytes();
        chunk.entering += b;
        if (i > 0) held.carried += b;
      }
      if (!ends) chunk.leaving = {1};   // what leaves is what enters the next virtual stage; here only that it does
      s.chunks.push_back(chunk);
      s.memory50.chunks.push_back(held);
      s.memory95.chunks.push_back(held);
    }
    return s;
  }

  void add_slot(Stage& s, std::int32_t layer, int chunk, const FactorBand& load) {
    const LoweredKind& k = kind(layer);
    const auto& [cut, state, gather, reduce, once, late50, late95] = sharding(k);
    s.kinds.push_back(&k);
    s.time50.push_back({&k.time50, k.took50, gather, reduce, late50});
    s.time95.push_back({&k.time95, k.took95, gather, reduce, late95});
    s.issue.push_back({.gathers = cut.gathered.value > 0, .reduces = cut.reduces(), .backward = !k.time50.backward.empty(),
                       .weight_backward = !k.time50.weight_backward.empty()});
    SlotMemory m50 = with_passes(slot_memory(k.time50, cut), k.memory50), m95 = with_passes(slot_memory(k.time95, cut), k.memory95);
    m50.chunk = m95.chunk = chunk;
    m50.kept = grown(k.kept, k.memory95.kept, load.p50.saved);
    m95.kept = grown(k.kept, k.memory95.kept, load.p95.saved);
    m50.put_off = grown(k.put_off, k.memory95.put_off, load.p50.saved);
    m95.put_off = grown(k.put_off, k.memory95.put_off, load.p95.saved);
    s.memory50.slots.push_back(std::move(m50));
    s.memory95.slots.push_back(std::move(m95));
    s.once.push_back(once);
    s.memory50.state += state;
    s.memory95.state += state;
  }

  void take_memory(Stage s, int stage, Forecast& out) {
    // After the warm-up, of less than two rounds of the pipeline, every round of p micro-batches holds what the one before held.
    Plan few = plan_;
    few.micro_batches = std::min<std::int64_t>(plan_.micro_batches, 4 * plan_.parallelism.pp);
    std::vector<Instance> list;
    Issuer issuer(few, s.issue, s.chunks);
    for (const Turn& t : turns(few, stage)) issuer.issue(t, list);
    const auto peak = [&](ListMemory& memory, Block LoweredKind::*buffers) {
      memory.pair = [&](std::int32_t f, std::int32_t b) -> const PassMemory& { return pairs_.of(s.kinds[index(f)]->*buffers, s.kinds[index(b)]->*buffers); };
      return list_memory(list, memory, c_.problem, plan_);
    };
    MemoryBreakdown p50 = peak(s.memory50, &LoweredKind::buffers50), p95 = peak(s.memory95, &LoweredKind::buffers95);
    // Host memory is that of the rank which puts most there, whatever stage is fullest.
    p50.host = std::max(p50.host, stage == 0 ? Bytes{} : out.memory.host);
    p95.host = std::max(p95.host, stage == 0 ? Bytes{} : out.memory_p95.host);
    if (stage == 0 || p50.peak() > out.memory.peak()) out.memory = p50;
    if (stage == 0 || p95.peak() > out.memory_p95.peak()) {
      out.memory_p95 = p95;
      out.worst_stage = stage;
    }
    out.memory.host = p50.host;
    out.memory_p95.host = p95.host;
  }

  void put_times(Forecast& out, int stage, double blocks, double exposed, double busy, double exchange, double step, double tail) {
    double forward = 0, backward = 0, recompute = 0;
    const Stage s = lower_stage(stage);
    for (const SlotTime& t : s.time50) {
      forward += t.time.forward.compute.value;
      backward += t.time.backward.compute.value + t.time.weight_backward.compute.value;
      recompute += t.time.backward.recompute.value;
    }
    const double m = static_cast<double>(plan_.micro_batches), rest = std::max(0.0, step - busy);
    const double exchanged = plan_.parallelism.pp > 1 ? std::min(2 * exchange * (plan_.parallelism.pp * plan_.virtual_stages - 1), rest) : 0;
    const auto put = [&](TimeCategory c, double v) { out.time[static_cast<std::size_t>(c)] = {v}; };
    put(TimeCategory::forward, m * forward);
    put(TimeCategory::backward, m * backward);
    put(TimeCategory::recompute, m * recompute);
    put(TimeCategory::expert_communication, exposed);
    put(TimeCategory::weight_communication, busy - blocks);
    put(TimeCategory::pipeline_exchange, exchanged);
    put(TimeCategory::pipeline_bubble, rest - exchanged);
    put(TimeCategory::optimizer, tail);
  }

  const ScheduledContext& c_;
  const Plan& plan_;
  ScheduledKinds& kinds_;
  FactorBand band_;
  PriceCall price50_, price95_;
  std::map<const LoweredKind*, Sharding> sharding_;
  PairMemory pairs_{c_.problem.runtime};
};

}  // namespace

void apply_schedule(const ScheduledContext& context, const Plan& plan, Forecast& out, std::shared_ptr<ScheduledKinds>& kinds) {
  if (!kinds || kinds->split != splits_backward(plan)) {
    kinds = std::make_shared<ScheduledKinds>();
    kinds->split = splits_backward(plan);
    kinds->by_slot.resize(context.outline.kinds.size() + 2);
  }
  Scheduled(context, plan, *kinds).apply(out);
}

}  // namespace moeplan
