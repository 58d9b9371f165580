#include "planner/decide.hpp"

#include <algorithm>

#include "planner/intervals.hpp"
#include "planner/rules.hpp"
#include "sim/program/schedules/schedule.hpp"

namespace moeplan {
namespace {

/// Place of an order under one of up to eight treatments in a set of bits.
unsigned bit(Schedule order, std::size_t treatment) { return 1u << (static_cast<unsigned>(order) * 8 + static_cast<unsigned>(treatment)); }

GroupResult in_group(const Evaluator& evaluator, const Plan& block) {
  GroupResult out;
  out.group = std::make_unique<Evaluator::Group>(evaluator, block);
  return out;
}

}  // namespace

BlockSearch::BlockSearch(const Problem& problem, const Grid& grid, const Evaluator& evaluator, const ShardTable& table, std::size_t block)
    : problem_(problem), grid_(grid), table_(table), index_(block), block_(grid.blocks[block].plan), have_(problem.cluster.device.memory.value),
      out_(in_group(evaluator, block_)), scorer_(evaluator, *out_.group, block_, table) {}

GroupResult BlockSearch::decide(const Known& known) {
  Incumbents best = known.best;
  each_pipeline([&](const std::vector<Passed>& passed) {
    const ShardStages& first = stages(passed.front().stages);
    tokens_ = static_cast<double>(block_.micro_batch * scorer_.micro_batches(passed.front().stages) * first.dp) * static_cast<double>(problem_.workload.sequence_length);
    for (std::size_t d = 0; d < first.dense.size(); ++d)
      for (std::size_t e = 0; e < first.expert.size(); ++e) decide_layout(passed, {.stages = passed.front().stages, .dense = d, .expert = e}, known, best);
  });
  for (const Found& f : best.kept())
    if (f.block == index_) out_.found.push_back(f);
  if (out_.found.empty()) out_.group.reset();
  return std::move(out_);
}

bool BlockSearch::anything_fits() {
  bool found = false;
  each_pipeline([&](const std::vector<Passed>& passed) {
    const ShardStages& first = stages(passed.front().stages);
    for (std::size_t d = 0; d < first.dense.size() && !found; ++d)
      for (std::size_t e = 0; e < first.expert.size() && !found; ++e)
        for (const Passed& each : passed) {
          Choice c{.stages = each.stages, .dense = d, .expert = e};
          if (found || scorer_.states(c) > have_) continue;
          set_treatments(first, c);
          for (const Schedule order : each.orders)
            for (const Treatment& t : treatments_) {
              c.schedule = order, c.reshard = t.reshard, c.prefetch = t.prefetch;
              found = found || fits(c);
            }
        }
  });
  return found;
}

bool BlockSearch::fits(const Choice& c) {
  if (closed_form(c)) {
    const PeakBytes memory = scorer_.memory(c);
    return memory.p95 <= have_ && !host_overflow(problem_.cluster, {memory.host});
  }
  const MemoryBreakdown m = out_.group->forecast(scorer_.plan(c)).memory_p95;
  return m.peak().value <= have_ && !host_overflow(problem_.cluster, m.host);
}

/// Calls `f(passed)` for each number of stages; counts what the rules reject.
template <class F>
void BlockSearch::each_pipeline(const F& f) {
  std::vector<Passed> passed;
  for (std::size_t s = 0; s < table_.stages.size();) {
    const int pp = stages(s).pp;
    const std::int64_t n = choices(pp);
    passed.clear();
    std::optional<Plan> looked;   // what the rules found no fault with; other stages and orders of it only have to fit the schedule
    int of_virtual = 0;
    std::vector<Schedule> whole;  // the orders of a split with as many virtual stages, all of which pass
    for (; s < table_.stages.size() && stages(s).pp == pp; ++s) {
      if (looked && stages(s).virtual_stages == of_virtual && !stages(s).split.stages.empty() && !whole.empty()) {
        passed.push_back({s, whole});
        continue;
      }
      Passed here{s, {}};
      const std::vector<Schedule> orders = grid_.orders(block_, pp, stages(s).virtual_stages);
      for (const Schedule order : orders) {
        const std::optional<Rejection> no = rejection(s, order, looked);
        if (!no) { here.orders.push_back(order); continue; }
        out_.searched += n;
        out_.rejected[no->rule] += n;
        out_.example.try_emplace(no->rule, no->reason);
      }
      of_virtual = stages(s).virtual_stages;
      whole = here.orders.size() == orders.size() ? orders : std::vector<Schedule>{};
      if (!here.orders.empty()) passed.push_back(std::move(here));
    }
    if (!passed.empty()) f(passed);
  }
}

std::optional<Rejection> BlockSearch::rejection(std::size_t s, Schedule order, std::optional<Plan>& looked) const {
  if (looked && !stages(s).split.stages.empty()) {
    looked->schedule = order;
    looked->virtual_stages = stages(s).virtual_stages;
    if (const std::string fault = schedule_fault(*looked); !fault.empty()) return Rejection{"schedule_fits", fault};
    return std::nullopt;
  }
  Plan plan = example(s, order);
  std::optional<Rejection> out = first_rejection(problem_, plan);
  if (!out) looked = std::move(plan);
  return out;
}

/// Rules look at stages, batch and blocks, not at how states are sharded: one plan stands for all.
Plan BlockSearch::example(std::size_t s, Schedule order) const {
  const ShardStages& of = stages(s);
  Plan plan = block_;
  for (const Parallelism& p : grid_.layouts[grid_.blocks[index_].layouts])
    if (p.pp == of.pp) { plan.parallelism = p; break; }
  plan.micro_batches = scorer_.micro_batches(s);
  plan.schedule = order;
  plan.virtual_stages = of.virtual_stages;
  plan.stage_layers = of.split.stages.empty() ? even_stages(static_cast<std::int64_t>(problem_.model.layers.size()), of.pp * of.virtual_stages) : of.split.stage_layers;
  return plan;
}

/// Candidates of one order over `pp` stages.
std::int64_t BlockSearch::choices(int pp) const {
  std::int64_t n = 0;
  for (const Parallelism& p : grid_.layouts[grid_.blocks[index_].layouts])
    if (p.pp == pp)
      for (const bool reshard : grid_.reshards)
        for (const std::int64_t prefetch : grid_.prefetches) n += grid_.distinct(p.dp_shard * p.cp > 1 || p.expert_shard > 1 || offloads_weights(block_.offload), reshard, prefetch) ? 1 : 0;
  return n;
}

void BlockSearch::set_treatments(const ShardStages& s, const Choice& c) {
  treatments_.clear();
  for (const bool reshard : grid_.reshards)
    for (const std::int64_t prefetch : grid_.prefetches)
      if (grid_.distinct(s.dense[c.dense].gathers || s.expert[c.expert].gathers, reshard, prefetch)) treatments_.push_back({reshard, prefetch});
}

bool BlockSearch::hopeless(const Known& known, const Incumbents& best, const Four& floor, std::int64_t bytes) const {
  const std::int64_t bin = throughput_bin(tokens_ / std::max(floor[Lane4::high], floor[Lane4::p95]));
  return best.hopeless(bin, bytes) || known.seed.hopeless(bin, bytes);
}

/// All splits and orders of one layout: together where a bound over all splits decides all, else split by split.
void BlockSearch::decide_layout(const std::vector<Passed>& passed, Choice c, const Known& known, Incumbents& best) {
  set_treatments(stages(c.stages), c);
  const std::int64_t n = std::ssize(treatments_);
  open_ = ~0u;
  std::int64_t splits = 0;
  for (const Passed& each : passed) splits += std::ssize(each.orders);
  if (known.fits && splits > 1) {
    const SplitFloor floor = scorer_.any_split(c);
    const auto all = [&](std::int64_t& way) { out_.searched += n * splits, way += n * splits; };
    if (floor.states > have_ && floor.states >= std::min(known.nearest_states.bytes, out_.nearest_states.bytes)) return all(out_.states);
    if (floor.bytes > have_) return all(out_.peaks);
    if (grid_.wide && scorer_.covers_schedules()) {
      open_ = 0;
      for (const Schedule order : {Schedule::one_forward_one_backward, Schedule::interleaved, Schedule::zero_bubble, Schedule::expert_overlap}) {
        const auto asked = [&](const Passed& p) { return std::find(p.orders.begin(), p.orders.end(), order) != p.orders.end(); };
        if (std::none_of(passed.begin(), passed.end(), asked)) continue;
        c.schedule = order;
        for (std::size_t t = 0; t < treatments_.size(); ++t) {
          c.reshard = treatments_[t].reshard, c.prefetch = treatments_[t].prefetch;
          if (!hopeless(known, best, scorer_.any_split_step(c), floor.bytes)) open_ |= bit(order, t);
        }
      }
      if (open_ == 0) return all(out_.dominated);
    }
  }
  for (const Passed& each : passed) {
    c.stages = each.stages;
    decide_split(each, c, known, best);
  }
}

void BlockSearch::decide_split(const Passed& split, Choice c, const Known& known, Incumbents& best) {
  const std::int64_t n = std::ssize(treatments_), all = n * std::ssize(split.orders);
  out_.searched += all;
  const std::int64_t states = scorer_.states(c);
  if (states > have_) {
    out_.states += all;
    c.schedule = split.orders.front(), c.reshard = treatments_.front().reshard, c.prefetch = treatments_.front().prefetch;
    out_.nearest_states.take(states, index_, c);
    return;
  }
  for (const Schedule order : split.orders) {
    c.schedule = order;
    const auto least = scorer_.least(c);
    const bool more = least && *least > std::min(known.nearest_peak.bytes, out_.nearest_peak.bytes);
    if (more || (grid_.wide && least && *least > have_ && known.fits)) { out_.peaks += n; continue; }
    const bool bounds = grid_.wide && closed_form(c);
    for (std::size_t t = 0; t < treatments_.size(); ++t) {
      c.reshard = treatments_[t].reshard, c.prefetch = treatments_[t].prefetch;
      const bool open = (open_ & bit(order, t)) != 0;
      if (!open || (bounds && hopeless(known, best, scorer_.floor(c), std::max(states, least.value_or(0))))) { ++out_.dominated; continue; }
      decide_one(c, known, best);
    }
  }
}

void BlockSearch::decide_one(const Choice& c, const Known& known, Incumbents& best) {
  if (!closed_form(c)) { walk(c, best); return; }
  if (grid_.wide && known.fits && c.schedule != Schedule::one_forward_one_backward) {
    const std::int64_t bytes = scorer_.warm_peak(c);
    if (bytes > have_) { ++out_.peaks; return; }
    if (hopeless(known, best, scorer_.floor(c), bytes) || hopeless(known, best, scorer_.close_floor(c), bytes)) { ++out_.dominated; return; }
  }
  const PeakBytes memory = scorer_.memory(c);
  if (memory.p95 > have_) { ++out_.peaks; out_.nearest_peak.take(memory.p95, index_, c); return; }
  if (!host_takes(memory.host)) return;
  ++out_.feasible;
  if (hopeless(known, best, scorer_.floor(c), memory.p95) || hopeless(known, best, scorer_.close_floor(c), memory.p95)) return;
  ++out_.priced;
  best.add(found(problem_, block_, stages(c.stages), index_, c, memory, scorer_.step(c), scorer_.micro_batches(c.stages)));
}

/// A candidate that only the walk prices. Its interval is that of its price under 1F1B.
void BlockSearch::walk(const Choice& c, Incumbents& best) {
  const Forecast f = out_.group->forecast(scorer_.plan(c));
  const PeakBytes memory{scorer_.states(c), f.memory.peak().value, f.memory_p95.peak().value, f.memory_p95.host.value};
  if (memory.p95 > have_) { ++out_.peaks; out_.nearest_peak.take(memory.p95, index_, c); return; }
  if (!host_takes(memory.host)) return;
  ++out_.feasible;
  ++out_.priced;
  Choice plain = c;
  plain.schedule = Schedule::one_forward_one_backward;
  Four step = scorer_.step(plain);
  step = step * (f.step.value / step.median());
  step.v[0] = f.step.value;
  step.v[1] = f.step_p95.value;
  best.add(found(problem_, block_, stages(c.stages), index_, c, memory, step, scorer_.micro_batches(c.stages)));
}

/// Whether a node holds what its ranks put into host memory; a rejection is counted.
bool BlockSearch::host_takes(std::int64_t host) {
  if (host == 0) return true;
  const auto reason = host_overflow(problem_.cluster, {host});
  if (!reason) return true;
  ++out_.rejected["host_memory"];
  out_.example.try_emplace("host_memory", *reason);
  return false;
}

}  // namespace moeplan
