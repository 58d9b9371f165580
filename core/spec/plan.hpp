#pragma once
/// A problem (the inputs, checked against each other) and a plan for it (self-contained: it embeds its problem).

#include <optional>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "core/spec/choices.hpp"
#include "core/spec/cluster.hpp"
#include "core/spec/load.hpp"
#include "core/spec/model.hpp"
#include "core/spec/profile.hpp"
#include "core/spec/runtime.hpp"
#include "core/spec/workload.hpp"

namespace moeplan {

struct Problem {
  Json model_config;          ///< the config.json as given; `model` is imported from it, so a plan file replays without other files
  std::string model_name;
  ModelSpec model;
  ClusterSpec cluster;
  Workload workload;
  LoadModel load;
  Runtime runtime;
  DeviceProfile profile;
};

/// Degrees. World = pp x tp x cp x dp_replicate x dp_shard = pp x etp x ep x (expert data ranks): expert groups fold over the
/// tensor, context and data ranks of a stage.
struct Parallelism {
  int pp = 1, tp = 1, cp = 1, ep = 1, etp = 1, dp_replicate = 1, dp_shard = 1;
  int expert_shard = 1;       ///< FSDP degree of the experts inside their expert-data group: 1 keeps them whole on each rank
  bool operator==(const Parallelism&) const = default;
  [[nodiscard]] int dp() const { return dp_replicate * dp_shard; }
  [[nodiscard]] int stage_ranks() const { return tp * cp * dp(); }
  [[nodiscard]] int world() const { return pp * stage_ranks(); }
  [[nodiscard]] int expert_data() const { return stage_ranks() / (ep * etp); }
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("pp", &Parallelism::pp).required().between(1, 1 << 20), field("tp", &Parallelism::tp).between(1, 1 << 20),
                           field("cp", &Parallelism::cp).between(1, 1 << 20), field("ep", &Parallelism::ep).required().between(1, 1 << 20),
                           field("etp", &Parallelism::etp).between(1, 1 << 20), field("dp_replicate", &Parallelism::dp_replicate).between(1, 1 << 20),
                           field("dp_shard", &Parallelism::dp_shard).required().between(1, 1 << 20),
                           field("expert_shard", &Parallelism::expert_shard, "FSDP degree of the experts").between(1, 1 << 20));
  }
};

enum class Recompute : std::uint8_t { none, selective, full };
template <>
struct EnumNames<Recompute> {
  static constexpr std::array names{std::pair{Recompute::none, std::string_view("none")}, std::pair{Recompute::selective, std::string_view("selective")},
                                    std::pair{Recompute::full, std::string_view("full")}};
};

/// In which order a stage takes the passes of its micro-batches: sim/program/schedules, docs/program.md.
enum class Schedule : std::uint8_t {
  one_forward_one_backward,
  interleaved,       ///< 1F1B over virtual stages
  zero_bubble,       ///< 1F1B with the weight gradients put off into the bubble (ZB-H1)
  expert_overlap,    ///< a forward and a backward pass side by side: one's expert exchange under the other's compute
};
template <>
struct EnumNames<Schedule> {
  static constexpr std::array names{std::pair{Schedule::one_forward_one_backward, std::string_view("1f1b")}, std::pair{Schedule::interleaved, std::string_view("interleaved")},
                                    std::pair{Schedule::zero_bubble, std::string_view("zero_bubble")}, std::pair{Schedule::expert_overlap, std::string_view("expert_overlap")}};
};

/// The decision. `stage_layers` counts the layers of each virtual stage in model order; virtual stage i runs on pipeline stage
/// i mod pp as its chunk i / pp.
struct Plan {
  std::string format = "moeplan.plan.v1";
  Parallelism parallelism;
  std::int64_t micro_batch = 1;            ///< sequences per micro-batch and data rank
  std::int64_t micro_batches = 1;          ///< per step and data rank
  std::vector<std::int64_t> stage_layers;
  Recompute recompute = Recompute::full;
  bool reshard_after_forward = true;
  DType frozen_storage = DType::bf16;      ///< of frozen linear weights (experts, attention, dense, shared)
  std::int64_t loss_chunks = 8;            ///< pieces of the sequence in the dual-chunked loss
  std::int64_t prefetch = 1;               ///< FSDP blocks gathered ahead
  Offload offload = Offload::none;
  ContextExchange context_exchange = ContextExchange::ring;   ///< of softmax attention, at cp > 1
  StatePassing state_passing = StatePassing::scan;            ///< of linear mixers, at cp > 1
  ExpertExchange experts;
  Schedule schedule = Schedule::one_forward_one_backward;
  int virtual_stages = 1;                  ///< per pipeline stage
  bool operator==(const Plan&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("format", &Plan::format).required(), field("parallelism", &Plan::parallelism).required(),
                           field("micro_batch", &Plan::micro_batch).required().between(1, 1 << 24),
                           field("micro_batches", &Plan::micro_batches).required().between(1, 1 << 24),
                           field("stage_layers", &Plan::stage_layers).required().between(0, 10000), field("recompute", &Plan::recompute).required(),
                           field("reshard_after_forward", &Plan::reshard_after_forward), field("frozen_storage", &Plan::frozen_storage).required(),
                           field("loss_chunks", &Plan::loss_chunks).between(1, 1 << 20), field("prefetch", &Plan::prefetch).between(0, 8),
                           field("offload", &Plan::offload, "none, or what of optimizer, weights and activations lives on the host"),
                           field("context_exchange", &Plan::context_exchange), field("state_passing", &Plan::state_passing), field("experts", &Plan::experts),
                           field("schedule", &Plan::schedule), field("virtual_stages", &Plan::virtual_stages, "per pipeline stage").between(1, 128));
  }
};

/// Whether a plan's experts follow the load: they lie elsewhere than in their order.
[[nodiscard]] inline bool places_experts(const Plan& plan) {
  return plan.parallelism.ep > 1 && (plan.experts.placement != ExpertPlacement::contiguous || plan.experts.replicas > 0);
}

}  // namespace moeplan
