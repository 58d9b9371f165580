#include "executor/ranks/runnable.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace moeplan {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& what, const std::string& would_do) {
  throw InputError("plan." + field, what, would_do);
}

void refuse_exchange(const Problem& problem, const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer); f && f->experts % p.ep != 0)
        refuse("parallelism.ep",
               fmt::format("{} does not divide the {} experts of a layer; ranks with fewer experts are priced, not run",
                           p.ep, f->experts),
               "a degree that divides them");
  if (p.ep == 1) return;
  const ExpertExchange& e = plan.experts;
  if (e.chunks > 1)
    refuse("experts.chunks", fmt::format("{}: an exchange in pieces is priced, not run", e.chunks), "1");
  if (e.dispatch != DType::bf16)
    refuse("experts.dispatch", fmt::format("{} is priced, not run", name_of(e.dispatch)), "bf16");
  if (e.replicas > 0) refuse("experts.replicas", fmt::format("{} are priced, not run", e.replicas), "0");
  if (e.placement != ExpertPlacement::contiguous)
    refuse("experts.placement", fmt::format("{} is priced, not run", name_of(e.placement)), "contiguous");
}

void refuse_pipeline(const Problem& problem, const Plan& plan) {
  if (plan.virtual_stages > 1)
    refuse("virtual_stages", fmt::format("{} are priced, not run", plan.virtual_stages),
           "1, with the schedule 1f1b or zero_bubble");
  if (plan.schedule != Schedule::one_forward_one_backward && plan.schedule != Schedule::zero_bubble)
    refuse("schedule", fmt::format("{} is priced, not run", name_of(plan.schedule)), "1f1b or zero_bubble");
  if (plan.parallelism.pp > 1 && problem.model.tied_head)
    refuse(
        "parallelism.pp",
        fmt::format(
            "{}: the head is the embedding, which lies on another stage; keeping two copies equal is priced, not run",
            plan.parallelism.pp),
        "pp = 1");
}

}  // namespace

void refuse_what_cannot_run(const Problem& problem, const Plan& plan, const Backend& backend,
                            const WalkOptions& options, int ranks) {
  const Parallelism& p = plan.parallelism;
  if (p.world() != ranks)
    refuse("parallelism",
           fmt::format("is for {} rank{}; there {} {}", p.world(), p.world() == 1 ? "" : "s", ranks == 1 ? "is" : "are",
                       ranks),
           fmt::format("--ranks {}; --rank-slice R: rank R alone", p.world()));
  if (plan.offload != Offload::none)
    refuse("offload", fmt::format("{} is priced, not run", name_of(plan.offload)), "none");
  if (plan.experts.capacity_factor && options.capacity_factor == 0 && plan.experts.overflow != Overflow::drop_position)
    refuse("experts.overflow", fmt::format("{} is priced, not run", name_of(plan.experts.overflow)), "drop_position");
  refuse_pipeline(problem, plan);
  if (ranks == 1) return;
  if (backend.name() == "null")
    throw InputError("--backend", "null: has no memory that ranks could exchange", "cpu or cuda");
  if (p.tp > 1) refuse("parallelism.tp", fmt::format("{}: tensor parallelism is priced, not run", p.tp), "tp = 1");
  if (p.cp > 1) refuse("parallelism.cp", fmt::format("{}: context parallelism is priced, not run", p.cp), "cp = 1");
  if (p.etp > 1)
    refuse("parallelism.etp", fmt::format("{}: expert-tensor parallelism is priced, not run", p.etp), "etp = 1");
  refuse_exchange(problem, plan);
  const Runtime& runtime = problem.runtime;
  for (const auto& [is, what] :
       {std::pair{runtime.distributed_optimizer, "an optimizer cut over ranks whose gradients are whole (ZeRO-1)"},
        std::pair{runtime.reduce_once, "gradients reduced once a step"},
        std::pair{runtime.compute_copy, "a bf16 copy beside the master weights"}})
    if (is)
      throw InputError("runtime", fmt::format("{} has {}, which is priced, not run", runtime.name, what),
                       "a plan for the runtime moeplan or cpu");
}

Program lower_for_run(const Problem& problem, const Plan& plan, const WalkOptions& options, int rank) {
  return lower(problem, plan, rank, std::min(options.routed_bound, static_cast<double>(plan.parallelism.ep)));
}

}  // namespace moeplan
