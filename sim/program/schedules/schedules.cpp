#include <fmt/format.h>

#include <array>

#include "sim/program/schedules/schedule.hpp"

namespace moeplan {

namespace schedule_of {
std::vector<Turn> one_forward_one_backward(const Plan&, int stage);
std::vector<Turn> interleaved(const Plan&, int stage);
std::vector<Turn> zero_bubble(const Plan&, int stage);
std::vector<Turn> expert_overlap(const Plan&, int stage);
}  // namespace schedule_of

std::span<const ScheduleRule> schedules() {
  static constexpr std::array list{ScheduleRule{Schedule::one_forward_one_backward, schedule_of::one_forward_one_backward, false},
                                   ScheduleRule{Schedule::interleaved, schedule_of::interleaved, false},
                                   ScheduleRule{Schedule::zero_bubble, schedule_of::zero_bubble, true},
                                   ScheduleRule{Schedule::expert_overlap, schedule_of::expert_overlap, false}};
  return list;
}

std::vector<Turn> turns(const Plan& plan, int stage) { return schedules()[static_cast<std::size_t>(plan.schedule)].turns(plan, stage); }

bool splits_backward(const Plan& plan) { return schedules()[static_cast<std::size_t>(plan.schedule)].splits_backward; }

std::string schedule_fault(const Plan& plan) {
  const int v = plan.virtual_stages, p = plan.parallelism.pp;
  const bool takes_virtual = plan.schedule == Schedule::interleaved || plan.schedule == Schedule::expert_overlap;
  if (plan.schedule == Schedule::interleaved && v == 1) return "schedule interleaved needs virtual_stages of at least 2";
  if (v > 1 && !takes_virtual) return fmt::format("schedule {} has one virtual stage a stage, not {}", name_of(plan.schedule), v);
  if (v > 1 && p == 1) return fmt::format("{} virtual stages need more than one pipeline stage", v);
  if (v > 1 && plan.micro_batches % p != 0)
    return fmt::format("{} virtual stages take micro-batches in groups of pp = {}, which does not divide {}", v, p, plan.micro_batches);
  return {};
}

}  // namespace moeplan
