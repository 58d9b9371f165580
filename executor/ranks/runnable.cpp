#include "executor/ranks/runnable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "executor/ranks/messages.hpp"
#include "executor/ranks/slots.hpp"

namespace moeplan {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& what, const std::string& would_do) {
  throw InputError("plan." + field, what, would_do);
}

void refuse_placement(const Plan& plan, const WalkOptions& options) {
  const int ep = plan.parallelism.ep;
  const ExpertExchange& e = plan.experts;
  if (ep == 1 && e.replicas > 0)
    refuse("experts.replicas", fmt::format("{} on one expert rank, which has every expert already", e.replicas),
           "0, or ep > 1");
  if (e.replicas > 0 && e.placement == ExpertPlacement::contiguous)
    refuse("experts.replicas", fmt::format("{} of experts in their order; copies follow the load", e.replicas),
           "placement balanced or hierarchical");
  if (options.slice && places_experts(plan))
    refuse("experts.placement",
           fmt::format("{}: one rank alone of experts that follow the load is priced, not run", name_of(e.placement)),
           "contiguous");
  if (options.rebalance_every > 0 && !places_experts(plan))
    throw InputError("--rebalance-every",
                     fmt::format("{}, but the plan's experts do not follow the load: placement {} on {} expert ranks",
                                 options.rebalance_every, name_of(e.placement), ep),
                     "a plan with --placement balanced or hierarchical, and ep > 1");
}

void refuse_exchange(const Problem& problem, const Plan& plan, const WalkOptions& options) {
  const Parallelism& p = plan.parallelism;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer); f && (f->experts + plan.experts.replicas) % p.ep != 0)
        refuse("parallelism.ep",
               fmt::format("{} does not divide the {} expert slots of a layer; ranks with fewer are priced, not run",
                           p.ep, f->experts + plan.experts.replicas),
               "a degree that divides them");
  if (p.etp > 1 && options.slice)
    refuse("parallelism.etp", fmt::format("{}: one expert-tensor rank alone is priced, not run", p.etp), "etp = 1");
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer); p.etp > 1 && f && f->bias)
        refuse("parallelism.etp", fmt::format("{}: a bias of cut experts is priced, not run", p.etp), "etp = 1");
  if (p.etp > 1 && problem.workload.experts.shared_adapter)
    refuse("parallelism.etp", fmt::format("{}: an adapter common to cut experts is priced, not run", p.etp), "etp = 1");
  if (p.ep == 1 && p.etp == 1) return;
  const ExpertExchange& e = plan.experts;
  if (e.chunks > 1 && (p.etp > 1 || options.slice))
    refuse("experts.chunks",
           fmt::format("{}: an exchange in pieces {} is priced, not run", e.chunks,
                       options.slice ? "of one rank alone" : "beside expert-tensor ranks"),
           "1");
  if (e.dispatch != DType::bf16)
    refuse("experts.dispatch", fmt::format("{} is priced, not run", name_of(e.dispatch)), "bf16");
}

void refuse_tensor(const Problem& problem, const Plan& plan, const WalkOptions& options) {
  const int tp = plan.parallelism.tp;
  if (tp == 1) return;
  const auto no = [&](const std::string& why) { refuse("parallelism.tp", fmt::format("{}: {}", tp, why), "tp = 1"); };
  if (options.slice) no("one tensor rank alone is priced, not run");
  if (problem.model.vocabulary % tp != 0)
    no(fmt::format("does not divide the {} entries of the vocabulary; padded parts are priced, not run",
                   problem.model.vocabulary));
  if (!block_context(problem, plan).merges_loss)
    no(fmt::format("the runtime {} sums a loss over its ranks in a way that is priced, not run", problem.runtime.name));
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers) {
      const auto* a = std::get_if<GqaAttention>(&s.mixer);
      if ((a && a->qk_norm == QkNorm::full_width) || std::holds_alternative<LightningAttention>(s.mixer))
        no("a norm over the heads of all tensor ranks is priced, not run");
    }
}

void refuse_context(const Problem& problem, const Plan& plan, const WalkOptions& options) {
  const int cp = plan.parallelism.cp;
  if (cp == 1) return;
  const auto no = [&](const std::string& why, const char* would_do) {
    refuse("parallelism.cp", fmt::format("{}: {}", cp, why), would_do);
  };
  if (options.slice) no("one context rank alone is priced, not run", "cp = 1");
  const bool exchanges = plan.context_exchange == ContextExchange::all_to_all;
  const int ranks = cp * plan.parallelism.tp;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers) {
      const auto* gqa = std::get_if<GqaAttention>(&s.mixer);
      const auto* mla = std::get_if<MlaAttention>(&s.mixer);
      const bool ffn = std::holds_alternative<DenseFfn>(s.mixer) || std::holds_alternative<MoeFfn>(s.mixer);
      const bool delta = std::holds_alternative<KdaAttention>(s.mixer) || std::holds_alternative<GdnAttention>(s.mixer);
      if (!gqa && !mla && !ffn && !delta) no("a state of this mixer over context ranks is priced, not run", "cp = 1");
      if ((gqa && gqa->sinks) || (mla && mla->sinks)) {
        if (exchanges) no("attention sinks of exchanged heads are priced, not run", "context_exchange = ring");
        if (problem.workload.other.training == Training::full)
          no("trained attention sinks over context ranks are priced, not run", "frozen ones, or cp = 1");
        if ((gqa && gqa->index_topk > 0) || (mla && mla->indexer))
          no("attention sinks beside selected keys over context ranks are priced, not run", "cp = 1");
      }
      const std::int64_t run = problem.workload.sequence_length / (cp * context_runs(problem.model, plan));
      if (gqa && gqa->window && !exchanges && *gqa->window - 1 > run)
        no(fmt::format("a window of {} reaches beyond the {} tokens of a run", *gqa->window, run), "all_to_all");
      const std::int64_t heads = gqa ? std::gcd(gqa->heads, gqa->kv_heads) : mla ? mla->heads : 0;
      const bool whole = (gqa && gqa->index_topk == 0) || (mla && !mla->indexer);
      if (exchanges && whole && heads % ranks != 0)
        no(fmt::format("{} heads cannot be exchanged over {} context and tensor ranks", heads, ranks), "ring");
    }
}

void refuse_offload(const Problem& problem, const Plan& plan) {
  if (plan.offload == Offload::none) return;
  const auto no = [&](const std::string& beside, const char* would_do) {
    refuse("offload", fmt::format("{} {} is priced, not run", name_of(plan.offload), beside), would_do);
  };
  if (offloads_activations(plan.offload) && plan.experts.chunks > 1) no("beside an exchange in pieces", "experts.chunks = 1");
  if (offloads_optimizer(plan.offload) && problem.runtime.compute_copy) no("with master weights beside the weights", "a runtime without a compute copy");
}

void refuse_pipeline(const Problem& problem, const Plan& plan, const WalkOptions& options) {
  if (const std::string fault = schedule_fault(plan); !fault.empty()) refuse("schedule", fault, "a plan as `moeplan plan` writes it");
  if (options.slice && (plan.virtual_stages > 1 || plan.schedule == Schedule::expert_overlap))
    refuse("schedule", fmt::format("{}: one rank alone of it is priced, not run", name_of(plan.schedule)),
           "1f1b or zero_bubble");
  if (plan.schedule == Schedule::expert_overlap && plan.parallelism.pp == 1)
    refuse("schedule", "expert_overlap on one stage, where a second micro-batch would be alive, is priced, not run", "1f1b");
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
  refuse_offload(problem, plan);
  refuse_pipeline(problem, plan, options);
  refuse_placement(plan, options);
  if (ranks == 1) return;
  if (backend.name() == "null")
    throw InputError("--backend", "null: has no memory that ranks could exchange", "cpu or cuda");
  refuse_tensor(problem, plan, options);
  refuse_context(problem, plan, options);
  refuse_exchange(problem, plan, options);
  const Runtime& runtime = problem.runtime;
  for (const auto& [is, what] :
       {std::pair{runtime.distributed_optimizer, "an optimizer cut over ranks whose gradients are whole (ZeRO-1)"},
        std::pair{runtime.reduce_once, "gradients reduced once a step"},
        std::pair{runtime.compute_copy, "a bf16 copy beside the master weights"}})
    if (is)
      throw InputError("runtime", fmt::format("{} has {}, which is priced, not run", runtime.name, what),
                       "a plan for the runtime moeplan or cpu");
}

bool tokens_go_once(const Problem& problem, const Plan& plan, const WalkOptions& options) {
  return !options.slice && !once_hops(problem, plan).empty();
}

void exchange_once(Program& program, const Problem& problem, const Plan& plan, const WalkOptions& options) {
  if (!tokens_go_once(problem, plan, options)) return;
  for (Block& b : program.blocks) b = exchanged_once(std::move(b));
}

Program lower_for_run(const Problem& problem, const Plan& plan, const WalkOptions& options, int rank) {
  Program program = lower(problem, plan, rank, std::min(options.routed_bound, static_cast<double>(plan.parallelism.ep)));
  if (plan.parallelism.pp > 1) order_messages(program, plan);
  return program;
}

}  // namespace moeplan
