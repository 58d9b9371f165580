/// What gathers and reductions beside them add to a candidate's passes (sim/cost/contention.hpp).

#include "planner/scorer.hpp"

namespace moeplan {

/// Of each kind beside one half of its weights.
const std::vector<SlotCrossings>& GroupScorer::crossings(const ShardPrices& prices) {
  std::vector<SlotCrossings>& known = crossings_[&prices];
  if (!known.empty()) return known;
  for (std::size_t k = 0; k < kinds_.size(); ++k) known.push_back(slot_crossings(shared_.ports, priced_[k]->forward_transfers, priced_[k]->backward_transfers, prices.gathers[k], prices.reductions[k]));
  return known;
}

/// What a layout's gathers and reductions add to each kind's passes; empty where that is nothing.
const std::vector<SlotDelays>& GroupScorer::delays(const Choice& c) {
  const ShardPrices &dense = *table_.stages[c.stages].dense[c.dense].prices, &expert = *table_.stages[c.stages].expert[c.expert].prices;
  if (delays_of_ == Halves{&dense, &expert}) return delays_;
  delays_of_ = {&dense, &expert};
  delays_.clear();
  const std::vector<SlotCrossings>&a = crossings(dense), &b = crossings(expert);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    SlotCrossings both = a[k];
    both += b[k];
    if (!both.any()) continue;
    delays_.resize(kinds_.size());
    delays_[k] = slot_delays(kinds_[k].forward.median(), kinds_[k].backward.median(), both);
  }
  return delays_;
}

/// Seconds that the passes of each class take longer so: every slot but a pass's first.
const std::vector<SlotDelays>& GroupScorer::late(const Choice& c) {
  const ShardStages& s = table_.stages[c.stages];
  StageTable& t = stage_[c.stages];
  t.late.resize(s.dense.size() * s.expert.size());
  std::vector<SlotDelays>& known = t.late[c.dense * s.expert.size() + c.expert];
  if (!known.empty()) return known;
  const std::vector<SlotDelays>& each = delays(c);
  known.resize(s.split.classes.size());
  for (std::size_t i = 0; i < known.size() && !each.empty(); ++i) {
    for (const auto& [kind, slots] : t.counts[i]) {
      known[i].forward += each[kind].forward * slots;
      known[i].backward += each[kind].backward * slots;
      known[i].reduced += each[kind].reduced * slots;
    }
    const std::vector<SlotRun>& runs = s.split.classes[i];
    const SlotDelays &first = each[static_cast<std::size_t>(runs.front().kind)], &last = each[static_cast<std::size_t>(runs.back().kind)];
    known[i].forward -= first.forward, known[i].backward -= last.backward, known[i].reduced -= last.reduced;
  }
  return known;
}

}  // namespace moeplan
