#pragma once
/// Decides the candidates of one block of the grid: all at once where a rule, their states or a bound decides all, else one by one.

#include <map>

#include "planner/incumbents.hpp"
#include "planner/space.hpp"

namespace moeplan {

/// Of the candidates that a memory rule rejects the one that comes closest.
struct Miss {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  std::size_t block = 0;
  Choice choice;
  void take(std::int64_t need, std::size_t of, const Choice& c) {
    if (need < bytes) *this = {need, of, c};
  }
};

/// What the rounds before have found: what is cut off by a bound does not depend on threads.
struct Known {
  const Incumbents& best;                 ///< of this search
  const Incumbents& seed;                 ///< wide search: of the narrow one, whose plans are in the wide space too
  bool fits = false;                      ///< something is known to fit
  Miss nearest_states, nearest_peak;      ///< a candidate known to need more is not measured
};

/// What one block's candidates came to. Results are merged in order, so that threads do not show in the answer.
struct GroupResult {
  std::int64_t searched = 0, feasible = 0, priced = 0, dominated = 0, states = 0, peaks = 0;   ///< the last two: rejected by memory
  std::map<std::string, std::int64_t> rejected;
  std::map<std::string, std::string> example;
  Miss nearest_states, nearest_peak;
  std::vector<Found> found;
  std::unique_ptr<Evaluator::Group> group;   ///< kept where something was found
};

class BlockSearch {
 public:
  BlockSearch(const Problem& problem, const Grid& grid, const Evaluator& evaluator, const ShardTable& table, std::size_t block);

  [[nodiscard]] GroupResult decide(const Known& known);
  /// Whether any candidate's memory fits; times are not priced.
  [[nodiscard]] bool anything_fits();

 private:
  /// Stages that the rules let pass, with their orders.
  struct Passed {
    std::size_t stages = 0;
    std::vector<Schedule> orders;
  };
  /// How gathered weights are treated.
  struct Treatment {
    bool reshard = true;
    std::int64_t prefetch = 1;
  };

  template <class F>
  void each_pipeline(const F& f);
  [[nodiscard]] std::optional<Rejection> rejection(std::size_t stages, Schedule order, std::optional<Plan>& looked) const;
  [[nodiscard]] Plan example(std::size_t stages, Schedule order) const;
  [[nodiscard]] std::int64_t choices(int pp) const;
  void set_treatments(const ShardStages& stages, const Choice& c);
  void decide_layout(const std::vector<Passed>& passed, Choice c, const Known& known, Incumbents& best);
  void decide_split(const Passed& split, Choice c, const Known& known, Incumbents& best);
  void decide_one(const Choice& c, const Known& known, Incumbents& best);
  void walk(const Choice& c, Incumbents& best);
  [[nodiscard]] bool host_takes(std::int64_t host);
  [[nodiscard]] bool closed_form(const Choice& c) { return c.schedule == Schedule::one_forward_one_backward || scorer_.covers_schedules(); }
  [[nodiscard]] const ShardStages& stages(std::size_t s) const { return table_.stages[s]; }
  [[nodiscard]] bool fits(const Choice& c);
  /// Whether plans that are faster and need no more memory are known, whatever lies between the floor and the candidate.
  [[nodiscard]] bool hopeless(const Known& known, const Incumbents& best, const Four& floor, std::int64_t bytes) const;

  const Problem& problem_;
  const Grid& grid_;
  const ShardTable& table_;
  std::size_t index_;
  const Plan& block_;
  std::int64_t have_;
  GroupResult out_;
  GroupScorer scorer_;
  double tokens_ = 0;                     ///< a step's, under the stages looked at
  std::vector<Treatment> treatments_;     ///< the distinct ones of the layout looked at
  unsigned open_ = ~0u;                   ///< of the layout: orders and treatments that no bound over all splits has decided
};

}  // namespace moeplan
