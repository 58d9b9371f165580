#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "core/error.hpp"
#include "planner/certificate.hpp"
#include "planner/decide.hpp"
#include "planner/intervals.hpp"
#include "planner/optimizers.hpp"

namespace moeplan {
namespace {

/// Groups searched between two looks at what all groups have found: what is cut off by a bound does not depend on threads.
constexpr std::size_t kRound = 16;

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
    const std::vector<std::size_t> order = promising_first();
    Miss nearest_states, nearest_peak;
    for (std::size_t first = 0; first < order.size(); first += kRound) {
      const std::size_t end = std::min(order.size(), first + kRound);
      const Known known{best_, seed_, !seed_.kept().empty() || !best_.kept().empty(), nearest_states, nearest_peak};
      for_each(first, end, [&](std::size_t i) {
        const std::size_t block = order[i];
        results_[block] = BlockSearch(problem_, grid_, shared_, tables_[table_of_[block]], block).decide(known);
      });
      for (std::size_t i = first; i < end; ++i) {
        const GroupResult& result = results_[order[i]];
        for (const Found& f : result.found) best_.add(f);
        if (result.nearest_states.bytes < nearest_states.bytes) nearest_states = result.nearest_states;
        if (result.nearest_peak.bytes < nearest_peak.bytes) nearest_peak = result.nearest_peak;
        if (result.group) holds_.insert(order[i]);
      }
      drop_groups();
      shared_.shared().kept.merge(shared_.shared().kept_lately);
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
        if (!fits && BlockSearch(problem_, grid_, shared_, tables_[table_of_[i]], i).anything_fits()) fits = true;
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
    for (const Found& f : first.best_.kept()) {
      seed_.add(f);
      seeds_.push_back(first.grid_.blocks[f.block].plan);
    }
  }

  /// Wide search: blocks that vary what the narrow search has found come first, and of those the ways that mostly pay; the better
  /// what is known, the more a bound cuts off.
  std::vector<std::size_t> promising_first() const {
    std::vector<std::size_t> order(grid_.blocks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (seeds_.empty()) return order;
    const auto rank = [&](std::size_t i) {
      const Plan& p = grid_.blocks[i].plan;
      const bool varies = std::any_of(seeds_.begin(), seeds_.end(), [&](const Plan& s) {
        return s.parallelism.tp == p.parallelism.tp && s.parallelism.ep == p.parallelism.ep && s.parallelism.cp == p.parallelism.cp && s.micro_batch == p.micro_batch && s.recompute == p.recompute && s.frozen_storage == p.frozen_storage;
      });
      return std::tuple(!varies, -p.experts.chunks, p.experts.placement == ExpertPlacement::contiguous, p.experts.replicas);
    };
    std::vector<decltype(rank(0))> ranks;
    for (const std::size_t i : order) ranks.push_back(rank(i));
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ranks[a] < ranks[b]; });
    return order;
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

  /// Frees the lowered blocks of groups of which nothing is kept.
  void drop_groups() {
    std::set<std::size_t> used;
    for (const Found& f : best_.kept()) used.insert(f.block);
    for (const std::size_t i : holds_)
      if (!used.contains(i)) results_[i].group.reset();
    holds_ = std::move(used);
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

  /// Counts what memory rejects. Without a candidate that came closest all fell by a bound, and something else fits.
  std::optional<NearMiss> say_memory(Answer& answer, const char* rule, std::int64_t count, const Miss& miss, bool states) {
    if (count == 0) return std::nullopt;
    answer.rejected[rule] = count;
    const std::string have = human(problem_.cluster.device.memory);
    if (miss.bytes == Miss{}.bytes) {
      answer.example[rule] = "what they hold at the least exceeds a device's " + have;
      return std::nullopt;
    }
    NearMiss near = near_miss(miss, states);
    answer.example[rule] = fmt::format("the closest one needs {} of a device's {} ({})", human(near.memory.peak()), have, near.memory.peak_at.empty() ? "states alone" : near.memory.peak_at);
    return near;
  }

  Answer answer() {
    Answer out;
    std::int64_t states = 0, peaks = 0;
    Miss nearest_states, nearest_peak;
    for (GroupResult& r : results_) {
      out.searched += r.searched, out.feasible += r.feasible, out.bounded += r.feasible - r.priced, out.dominated += r.dominated, states += r.states, peaks += r.peaks;
      for (auto& [rule, count] : r.rejected) out.rejected[rule] += count;
      for (auto& [rule, reason] : r.example) out.example.try_emplace(rule, reason);
      if (r.nearest_states.bytes < nearest_states.bytes) nearest_states = r.nearest_states;
      if (r.nearest_peak.bytes < nearest_peak.bytes) nearest_peak = r.nearest_peak;
    }
    const std::optional<NearMiss> by_states = say_memory(out, "memory_states", states, nearest_states, true), by_peak = say_memory(out, "memory_peak", peaks, nearest_peak, false);
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
  std::vector<Plan> seeds_;             ///< what the narrow search keeps
  std::set<std::size_t> holds_;         ///< blocks whose groups are kept
  tbb::task_arena arena_;
  std::vector<std::size_t> table_of_;   ///< per block
  std::vector<ShardTable> tables_;
  std::vector<GroupResult> results_;
  std::atomic<std::size_t> done_{0};
};

}  // namespace

Answer plan(const Problem& problem, const SearchOptions& options) { return options.search_optimizer ? plan_over_optimizers(problem, options) : Search(problem, options).run(); }

bool anything_fits(const Problem& problem, const SearchOptions& options) {
  if (!options.search_optimizer) return Search(problem, options).anything_fits();
  return any_optimizer(problem, options, [](const Problem& p, const SearchOptions& o) { return anything_fits(p, o); });
}

}  // namespace moeplan
