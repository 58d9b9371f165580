#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "planner/certificate.hpp"
#include "planner/incumbents.hpp"
#include "planner/intervals.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/program/schedules/schedule.hpp"

namespace moeplan {
namespace {

/// Groups searched between two looks at what all groups have found: what is cut off by a bound does not depend on threads.
constexpr std::size_t kRound = 48;

/// Of the candidates that a memory rule rejects the one that comes closest.
struct Miss {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  std::size_t block = 0;
  Choice choice;
  void take(std::int64_t need, std::size_t of, const Choice& c) {
    if (need < bytes) *this = {need, of, c};
  }
};

/// What one group of candidates came to. Groups are merged in order, so that threads do not show in the answer.
struct GroupResult {
  std::int64_t searched = 0, feasible = 0, bounded = 0, dominated = 0, states = 0, peaks = 0;   ///< the last two: rejected by memory
  std::map<std::string, std::int64_t> rejected;
  std::map<std::string, std::string> example;
  Miss nearest_states, nearest_peak;
  std::vector<Found> found;
  std::unique_ptr<Evaluator::Group> group;   ///< kept where something was found
};

class Search {
 public:
  Search(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), grid_(grid(problem, options)), shared_(problem, options.full_attention_flops), best_(static_cast<std::size_t>(std::max(1, options.top))), seed_(best_),
        arena_(options.threads > 0 ? std::min(options.threads, tbb::info::default_concurrency()) : tbb::task_arena::automatic) {
    for (const Grid::Block& b : grid_.blocks) shared_.prepare(b.plan);
  }

  Answer run() {
    if (options_.wide) plant_seed();
    make_tables();
    results_.resize(grid_.blocks.size());
    for (std::size_t first = 0; first < grid_.blocks.size(); first += kRound) {
      const std::size_t end = std::min(grid_.blocks.size(), first + kRound);
      for_each(first, end, [&](std::size_t i) { results_[i] = group(i); });
      for (std::size_t i = first; i < end; ++i) {
        for (const Found& f : results_[i].found) best_.add(f);
        if (results_[i].nearest_peak.bytes < nearest_peak_.bytes) nearest_peak_ = results_[i].nearest_peak;
      }
      (void)best_.kept();
      drop_groups(end);
    }
    return answer();
  }

  /// Whether any candidate's memory fits; times are not priced.
  bool anything_fits() {
    make_tables();
    for (std::size_t first = 0; first < grid_.blocks.size(); first += kRound) {
      const std::size_t end = std::min(grid_.blocks.size(), first + kRound);
      std::atomic<bool> fits{false};
      for_each(first, end, [&](std::size_t i) {
        if (!fits) fits = fits || group_fits(i);
      });
      if (fits) return true;
    }
    return false;
  }

 private:
  template <class F>
  void for_each(std::size_t first, std::size_t end, const F& f) {
    arena_.execute([&] {
      tbb::parallel_for(first, end, [&](std::size_t i) {
        f(i);
        if (options_.progress) options_.progress(static_cast<double>(++done_) / static_cast<double>(grid_.blocks.size()));
      });
    });
  }

  /// What the narrow search finds is in the wide space too: what it beats need not be looked at.
  void plant_seed() {
    SearchOptions narrow = options_;
    narrow.wide = false;
    narrow.progress = {};
    Search first(problem_, narrow);
    (void)first.run();
    for (const Found& f : first.best_.kept()) seed_.add(f);
    seeded_ = !seed_.kept().empty();
  }

  /// One table per weights and layouts, shared by micro-batches and recompute.
  void make_tables() {
    std::map<std::tuple<std::size_t, DType, Offload, std::int64_t>, std::size_t> known;
    std::vector<std::size_t> example;
    for (std::size_t i = 0; i < grid_.blocks.size(); ++i) {
      const Plan& plan = grid_.blocks[i].plan;
      const auto [it, fresh] = known.try_emplace({grid_.blocks[i].layouts, plan.frozen_storage, plan.offload, plan.experts.replicas}, example.size());
      if (fresh) example.push_back(i);
      table_of_.push_back(it->second);
    }
    tables_.resize(example.size());
    arena_.execute([&] {
      tbb::parallel_for(std::size_t{0}, example.size(), [&](std::size_t t) {
        const Grid::Block& b = grid_.blocks[example[t]];
        tables_[t] = shard_table(shared_.shared(), b.plan, grid_.layouts[b.layouts], grid_.splits);
      });
    });
  }

  /// Stages of one number that the rules let pass, with their orders.
  struct Passed {
    std::size_t stages = 0;
    std::vector<Schedule> orders;
  };

  /// Calls `f(passed, n)` for each number of stages, n the candidates of one order; counts what the rules reject.
  template <class F>
  void each_pipeline(std::size_t block, GroupScorer& scorer, GroupResult& out, const F& f) {
    const ShardTable& table = tables_[table_of_[block]];
    std::vector<Passed> passed;
    for (std::size_t s = 0; s < table.stages.size();) {
      const int pp = table.stages[s].pp;
      const std::int64_t n = choices(block, pp);
      passed.clear();
      std::optional<Plan> looked;   // what the rules found no fault with; other stages and orders of it only have to fit the schedule
      for (; s < table.stages.size() && table.stages[s].pp == pp; ++s) {
        Passed here{s, {}};
        for (const Schedule order : grid_.orders(grid_.blocks[block].plan, pp, table.stages[s].virtual_stages)) {
          std::optional<Rejection> rejection;
          if (looked && !table.stages[s].split.stages.empty()) {
            looked->schedule = order;
            looked->virtual_stages = table.stages[s].virtual_stages;
            if (const std::string fault = schedule_fault(*looked); !fault.empty()) rejection = Rejection{"schedule_fits", fault};
          } else {
            Plan plan = example(block, scorer, s, order);
            rejection = first_rejection(problem_, plan);
            if (!rejection) looked = std::move(plan);
          }
          if (!rejection) { here.orders.push_back(order); continue; }
          out.searched += n;
          out.rejected[rejection->rule] += n;
          out.example.try_emplace(rejection->rule, rejection->reason);
        }
        if (!here.orders.empty()) passed.push_back(std::move(here));
      }
      if (!passed.empty()) f(passed);
    }
  }

  /// Calls `f` for each distinct treatment of gathered weights.
  template <class F>
  void each_treatment(std::size_t block, Choice c, const F& f) const {
    const ShardStages& s = tables_[table_of_[block]].stages[c.stages];
    for (const bool reshard : grid_.reshards)
      for (const std::int64_t prefetch : grid_.prefetches) {
        if (!grid_.distinct(s.dense[c.dense].gathers || s.expert[c.expert].gathers, reshard, prefetch)) continue;
        c.reshard = reshard;
        c.prefetch = prefetch;
        f(static_cast<const Choice&>(c));
      }
  }

  /// Calls `f(choice)` for each distinct choice of a group that the rules let pass.
  template <class F>
  void each_choice(std::size_t block, GroupScorer& scorer, GroupResult& out, const F& f) {
    each_pipeline(block, scorer, out, [&](const std::vector<Passed>& passed) {
      const ShardStages& first = tables_[table_of_[block]].stages[passed.front().stages];
      for (std::size_t d = 0; d < first.dense.size(); ++d)
        for (std::size_t e = 0; e < first.expert.size(); ++e)
          for (const Passed& each : passed)
            for (const Schedule order : each.orders) each_treatment(block, {.stages = each.stages, .dense = d, .expert = e, .schedule = order}, f);
    });
  }

  /// Rules look at stages, batch and blocks, not at how states are sharded: one plan stands for all.
  Plan example(std::size_t block, const GroupScorer& scorer, std::size_t stages, Schedule order) const {
    const ShardStages& s = tables_[table_of_[block]].stages[stages];
    Plan plan = grid_.blocks[block].plan;
    for (const Parallelism& p : grid_.layouts[grid_.blocks[block].layouts])
      if (p.pp == s.pp) { plan.parallelism = p; break; }
    plan.micro_batches = scorer.micro_batches(stages);
    plan.schedule = order;
    plan.virtual_stages = s.virtual_stages;
    plan.stage_layers = s.split.stages.empty() ? even_stages(static_cast<std::int64_t>(problem_.model.layers.size()), s.pp * s.virtual_stages) : s.split.stage_layers;
    return plan;
  }

  std::int64_t choices(std::size_t block, int pp) const {
    std::int64_t n = 0;
    for (const Parallelism& p : grid_.layouts[grid_.blocks[block].layouts])
      if (p.pp == pp)
        for (const bool reshard : grid_.reshards)
          for (const std::int64_t prefetch : grid_.prefetches) n += grid_.distinct(p.dp_shard * p.cp > 1 || p.expert_shard > 1 || offloads_weights(grid_.blocks[block].plan.offload), reshard, prefetch) ? 1 : 0;
    return n;
  }

  bool group_fits(std::size_t i) {
    Evaluator::Group group(shared_, grid_.blocks[i].plan);
    GroupScorer scorer(shared_, group, grid_.blocks[i].plan, tables_[table_of_[i]]);
    GroupResult unused;
    bool fits = false;
    const std::int64_t have = problem_.cluster.device.memory.value;
    each_choice(i, scorer, unused, [&](const Choice& c) {
      if (fits || scorer.states(c) > have) return;
      if (closed_form(scorer, c)) {
        const PeakBytes memory = scorer.memory(c);
        fits = memory.p95 <= have && !host_overflow(problem_.cluster, {memory.host});
      } else {
        const MemoryBreakdown m = group.forecast(scorer.plan(c)).memory_p95;
        fits = m.peak().value <= have && !host_overflow(problem_.cluster, m.host);
      }
    });
    return fits;
  }

  [[nodiscard]] static bool closed_form(GroupScorer& scorer, const Choice& c) { return c.schedule == Schedule::one_forward_one_backward || scorer.covers_schedules(); }

  /// A candidate that only the walk prices. Its interval is that of its price under 1F1B.
  void walk(GroupScorer& scorer, const Choice& c, std::size_t i, GroupResult& out, Incumbents& best) {
    const std::int64_t have = problem_.cluster.device.memory.value;
    const Forecast f = out.group->forecast(scorer.plan(c));
    const PeakBytes memory{scorer.states(c), f.memory.peak().value, f.memory_p95.peak().value, f.memory_p95.host.value};
    if (memory.p95 > have) { ++out.peaks; out.nearest_peak.take(memory.p95, i, c); return; }
    if (!host_takes(memory.host, out)) return;
    ++out.feasible;
    Choice plain = c;
    plain.schedule = Schedule::one_forward_one_backward;
    Four step = scorer.step(plain);
    step = step * (f.step.value / step.median());
    step.v[0] = f.step.value;
    step.v[1] = f.step_p95.value;
    best.add(moeplan::found(problem_, grid_.blocks[i].plan, tables_[table_of_[i]].stages[c.stages], i, c, memory, step, scorer.micro_batches(c.stages)));
  }

  /// Whether a node holds what its ranks put into host memory; a rejection is counted.
  bool host_takes(std::int64_t host, GroupResult& out) const {
    if (host == 0) return true;
    const auto reason = host_overflow(problem_.cluster, {host});
    if (!reason) return true;
    ++out.rejected["host_memory"];
    out.example.try_emplace("host_memory", *reason);
    return false;
  }

  GroupResult group(std::size_t i) {
    GroupResult out;
    const Plan& block = grid_.blocks[i].plan;
    out.group = std::make_unique<Evaluator::Group>(shared_, block);
    GroupScorer scorer(shared_, *out.group, block, tables_[table_of_[i]]);
    Incumbents best = best_;
    each_pipeline(i, scorer, out, [&](const std::vector<Passed>& passed) {
      const ShardStages& first = tables_[table_of_[i]].stages[passed.front().stages];
      for (std::size_t d = 0; d < first.dense.size(); ++d)
        for (std::size_t e = 0; e < first.expert.size(); ++e)
          for (const Passed& each : passed) decide(scorer, {.stages = each.stages, .dense = d, .expert = e}, each.orders, i, out, best);
    });
    for (const Found& f : best.kept())
      if (f.block == i) out.found.push_back(f);
    if (out.found.empty()) out.group.reset();
    return out;
  }

  /// The candidates of one layout: together where their states or a bound decide all, else one by one.
  void decide(GroupScorer& scorer, Choice c, const std::vector<Schedule>& orders, std::size_t i, GroupResult& out, Incumbents& best) {
    const std::int64_t have = problem_.cluster.device.memory.value;
    const ShardStages& s = tables_[table_of_[i]].stages[c.stages];
    const double tokens = static_cast<double>(grid_.blocks[i].plan.micro_batch * scorer.micro_batches(c.stages) * s.dp) * static_cast<double>(problem_.workload.sequence_length);
    const auto bin = [&](const Four& floor) { return throughput_bin(tokens / std::max(floor[Lane4::high], floor[Lane4::p95])); };
    std::int64_t n = 0;
    each_treatment(i, c, [&](const Choice&) { ++n; });
    out.searched += n * std::ssize(orders);
    const std::int64_t states = scorer.states(c);
    if (states > have) {
      out.states += n * std::ssize(orders);
      Choice first = c;
      each_treatment(i, c, [&](const Choice& t) { if (n > 0) first = t, n = 0; });
      first.schedule = orders.front();
      out.nearest_states.take(states, i, first);
      return;
    }
    for (const Schedule order : orders) {
      c.schedule = order;
      const auto least = scorer.least(c);
      const bool more = least && *least > std::min(nearest_peak_.bytes, out.nearest_peak.bytes);
      if (more || (grid_.wide && least && *least > have && seeded_)) { out.peaks += n; continue; }
      if (grid_.wide && closed_form(scorer, c)) {
        const std::int64_t fastest = bin(scorer.least_step(c.stages, order)), bytes = std::max(states, least.value_or(0));
        if (hopeless(best, fastest, bytes)) { out.dominated += n; continue; }
      }
      each_treatment(i, c, [&](const Choice& t) {
        if (!closed_form(scorer, t)) { walk(scorer, t, i, out, best); return; }
        const PeakBytes memory = scorer.memory(t);
        if (memory.p95 > have) { ++out.peaks; out.nearest_peak.take(memory.p95, i, t); return; }
        if (!host_takes(memory.host, out)) return;
        ++out.feasible;
        if (hopeless(best, bin(scorer.floor(t)), memory.p95)) { ++out.bounded; return; }
        best.add(moeplan::found(problem_, grid_.blocks[i].plan, s, i, t, memory, scorer.step(t), scorer.micro_batches(t.stages)));
      });
    }
  }

  [[nodiscard]] bool hopeless(const Incumbents& best, std::int64_t bin, std::int64_t peak) const { return best.hopeless(bin, peak) || seed_.hopeless(bin, peak); }

  /// Frees the lowered blocks of groups of which nothing is kept.
  void drop_groups(std::size_t end) {
    std::set<std::size_t> used;
    for (const Found& f : best_.kept()) used.insert(f.block);
    for (std::size_t i = 0; i < end; ++i)
      if (!used.contains(i)) results_[i].group.reset();
  }

  Plan plan_of(std::size_t block, const Choice& c) {
    Evaluator::Group group(shared_, grid_.blocks[block].plan);
    return GroupScorer(shared_, group, grid_.blocks[block].plan, tables_[table_of_[block]]).plan(c);
  }

  NearMiss near_miss(const Miss& miss, bool states) {
    const Plan plan = plan_of(miss.block, miss.choice);
    Evaluator::Group group(shared_, grid_.blocks[miss.block].plan);
    return {plan, states ? group.standing(plan) : group.forecast(plan).memory_p95};
  }

  void say_memory(Answer& answer, const char* rule, std::int64_t count, const NearMiss& near) {
    answer.rejected[rule] = count;
    answer.example[rule] = fmt::format("the closest one needs {} of a device's {} ({})", human(near.memory.peak()), human(problem_.cluster.device.memory),
                                       near.memory.peak_at.empty() ? "states alone" : near.memory.peak_at);
  }

  Answer answer() {
    Answer out;
    std::int64_t states = 0, peaks = 0;
    Miss nearest_states, nearest_peak;
    for (GroupResult& r : results_) {
      out.searched += r.searched, out.feasible += r.feasible, out.bounded += r.bounded, out.dominated += r.dominated, states += r.states, peaks += r.peaks;
      for (auto& [rule, count] : r.rejected) out.rejected[rule] += count;
      for (auto& [rule, reason] : r.example) out.example.try_emplace(rule, reason);
      if (r.nearest_states.bytes < nearest_states.bytes) nearest_states = r.nearest_states;
      if (r.nearest_peak.bytes < nearest_peak.bytes) nearest_peak = r.nearest_peak;
    }
    std::optional<NearMiss> by_states, by_peak;
    if (states > 0) say_memory(out, "memory_states", states, by_states.emplace(near_miss(nearest_states, true)));
    if (peaks > 0) say_memory(out, "memory_peak", peaks, by_peak.emplace(near_miss(nearest_peak, false)));
    if (out.feasible == 0) {
      if (!by_states && !by_peak) {
        std::string why;
        for (const auto& [rule, reason] : out.example) why += (why.empty() ? "" : "; ") + rule + ": " + reason;
        throw InputError("plan", "no candidate passes the rules: " + why, "change the batch, the pinned degrees or the cluster");
      }
      // A candidate whose states fit came closer than one whose states alone do not.
      out.infeasible = certificate(problem_, by_peak ? *by_peak : *by_states, options_);
      return out;
    }
    const std::vector<Found>& kept = best_.kept();
    out.plans.resize(kept.size());
    std::map<std::size_t, std::vector<std::size_t>> by_block;
    for (std::size_t i = 0; i < kept.size(); ++i) by_block[kept[i].block].push_back(i);
    const std::vector<std::pair<std::size_t, std::vector<std::size_t>>> work(by_block.begin(), by_block.end());
    arena_.execute([&] {
      tbb::parallel_for(std::size_t{0}, work.size(), [&](std::size_t w) {
        const auto& [block, members] = work[w];
        Evaluator::Group& group = *results_[block].group;
        const GroupScorer scorer(shared_, group, grid_.blocks[block].plan, tables_[table_of_[block]]);
        for (const std::size_t i : members) {
          out.plans[i].plan = scorer.plan(kept[i].choice);
          out.plans[i].forecast = group.forecast(out.plans[i].plan);
          add_intervals(out.plans[i].forecast, kept[i].step, problem_);
        }
      });
    });
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (best_.front()[i]) out.pareto.push_back(i);
    return out;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Grid grid_;
  Evaluator shared_;
  Incumbents best_, seed_;
  bool seeded_ = false;                 ///< something is known to fit
  Miss nearest_peak_;                   ///< of the rounds before: a candidate known to need more is not measured
  tbb::task_arena arena_;
  std::vector<std::size_t> table_of_;   ///< per block
  std::vector<ShardTable> tables_;
  std::vector<GroupResult> results_;
  std::atomic<std::size_t> done_{0};
};

}  // namespace

Answer plan(const Problem& problem, const SearchOptions& options) { return Search(problem, options).run(); }

bool anything_fits(const Problem& problem, const SearchOptions& options) { return Search(problem, options).anything_fits(); }

}  // namespace moeplan
