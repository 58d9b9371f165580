#pragma once
/// Everything the Timeline page draws, made on a job's thread: a step of millions of events takes a second to pack.

#include <memory>
#include <set>

#include "gui/jobs/latest_job.hpp"
#include "gui/models/measured.hpp"
#include "gui/models/session.hpp"
#include "gui/models/trace_store.hpp"

namespace moeplan::gui {

struct TimelineScene {
  std::shared_ptr<const Play> play;                      ///< nothing: only a measured step
  std::shared_ptr<const StepTimeline> measured;
  TraceStore store;
  std::vector<Counter> counters;
  Counterparts pairs;                                    ///< where both are there
  std::set<Activity> present;
};

/// Stops by the ticket.
[[nodiscard]] TimelineScene sceneOf(std::shared_ptr<const Play> play, std::shared_ptr<const StepTimeline> measured, const Ticket& ticket);

/// Tokens that the busiest expert slot of each decoder layer takes in one micro-batch, under the expected load, the plan's placement, replicas
/// and capacity; 0 for layers without experts. Routed copies of an expert group: micro-batch x its data ranks x sequence x top-k.
[[nodiscard]] std::vector<double> busiestExpertTokens(const Problem& problem, const Plan& plan);

/// `values[layer]` while compute of that layer runs on a rank, 0 while no such layer does.
[[nodiscard]] Counter layerCounter(const StepTimeline& timeline, std::int32_t rank, const std::vector<double>& values);

}  // namespace moeplan::gui
