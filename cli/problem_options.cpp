#include "cli/problem_options.hpp"

#include <charconv>
#include <cmath>

#include "core/error.hpp"
#include "core/read.hpp"

namespace moeplan::cli {
namespace {

constexpr std::int64_t kMax = 1 << 24;

/// The enum value of a flag's word; nothing if the flag was not given.
template <NamedEnum E>
std::optional<E> word(const char* flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::string list;
  for (const auto& [value, name] : EnumNames<E>::names) {
    if (name == text) return value;
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  throw InputError(flag, "unknown value " + shown(text), "known: " + list);
}

/// The factor of --capacity-factor, or nothing if the words are none.
std::optional<double> factor(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 1e-3 && value <= 1024)) return std::nullopt;
  return value;
}

/// For a check of an option: what is wrong with a number of tokens, or nothing.
std::string more_than_nothing(const std::string& words) {
  double value = 0;
  const auto [end, error] = std::from_chars(words.data(), words.data() + words.size(), value);
  const bool number = error == std::errc() && end == words.data() + words.size() && std::isfinite(value);
  return number && value > 0 ? "" : words + " is no number above 0";
}

std::optional<std::string> given(const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); }

}  // namespace

ProblemRequest ProblemOptions::request() const {
  ProblemRequest out = named;
  out.model = model;
  out.cluster = given(cluster);
  out.device = given(device);
  out.profile = given(profile);
  out.gpus = gpus;
  out.method = word<Training>("--method", method);
  if (optimizer != "auto") out.optimizer = word<OptimizerKind>("--optimizer", optimizer);
  out.frozen_storage = word<DType>("--frozen-storage", frozen_storage);
  return out;
}

Pins ProblemOptions::pinned() const {
  Pins out = pins;
  out.recompute = word<Recompute>("--recompute", recompute);
  out.schedule = word<Schedule>("--schedule", schedule);
  if (pad) out.pad = true;
  out.context_exchange = word<ContextExchange>("--context-exchange", context_exchange);
  if (offload != "auto") out.offload = word<Offload>("--offload", offload);
  if (dispatch != "auto") out.dispatch = word<DType>("--dispatch", dispatch);
  out.route = word<DispatchRoute>("--dispatch-route", route);
  out.capacity_factor = factor(capacity);
  if (overflow != "auto") out.overflow = word<Overflow>("--overflow", overflow);
  out.placement = word<ExpertPlacement>("--expert-placement", placement);
  out.state_passing = word<StatePassing>("--state-passing", state_passing);
  return out;
}

SearchOptions ProblemOptions::search() const {
  SearchOptions out;
  out.pins = pinned();
  out.search_offload = offload == "auto";
  out.search_dispatch = dispatch == "auto";
  out.search_capacity = capacity == "auto";
  out.search_overflow = overflow == "auto";
  out.search_optimizer = optimizer == "auto";
  out.full_attention_flops = flops == "full-attention";
  if (out.search_overflow && !out.search_capacity && !out.pins.capacity_factor)
    throw InputError("--overflow", "auto without a capacity: nothing overflows", "add --capacity-factor auto or a factor");
  return out;
}

std::shared_ptr<ProblemOptions> add_problem_options(CLI::App& app) {
  auto o = std::make_shared<ProblemOptions>();
  app.add_option("MODEL", o->model, "config.json, a directory holding one, or a name from configs/models")->required();
  const char* const inputs = "Inputs (names from configs/ or files)";
  app.add_option("--cluster", o->cluster, "the machines, e.g. 128xh200")->group(inputs);
  app.add_option("--device", o->device, "instead of a cluster, with --gpus: whole machines of this device")->group(inputs);
  app.add_option("--gpus", o->gpus, "number of devices; with --cluster, its size")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))->group(inputs);
  app.add_option("--workload", o->named.workload, "what is trained (default lora-sft)")->group(inputs);
  app.add_option("--load", o->named.load, "how tokens fall on experts (default log-normal-v3)")->group(inputs);
  app.add_option("--runtime", o->named.runtime, "who runs the plan (default moeplan)")->group(inputs);
  app.add_option("--profile", o->profile, "measured times (default: this device's, else the H200's, scaled)")->group(inputs);
  const char* const overrides = "What overrides the files";
  const auto positive = [&](const char* name, std::optional<std::int64_t>& into, const char* doc) {
    app.add_option(name, into, doc)->check(CLI::Range(std::int64_t{1}, kMax))->group(overrides);
  };
  positive("--seq", o->named.sequence_length, "tokens per sequence");
  positive("--global-batch", o->named.global_batch, "sequences per step");
  app.add_option("--tokens", o->named.tokens, "tokens to train on in all, e.g. 1e9")->check(more_than_nothing)->group(overrides);
  app.add_option("--method", o->method, "lora or full")->group(overrides);
  positive("--rank", o->named.rank, "LoRA rank; alpha becomes twice as much");
  app.add_option("--targets", o->named.targets, "weight classes to train: attention,dense,shared,experts,router,embedding,head")->delimiter(',')->group(overrides);
  app.add_option("--optimizer", o->optimizer, "adamw, adamw8bit, muon, or auto (searched; it changes results)")->group(overrides);
  app.add_option("--frozen-storage", o->frozen_storage, "frozen weights in memory: bf16, fp8, int8, int4, nf4, mxfp4 or nvfp4")->group(overrides);
  app.add_option("--offload", o->offload, "to host memory: none, auto (searched), or a sum of optimizer, weights, activations, or all")->group(overrides);
  app.add_option("--flops", o->flops, "convention of MFU: causal (half of attention) or full-attention")->check(CLI::IsMember({"causal", "full-attention"}))->group(overrides);
  const char* const pins = "Pinned degrees (the others are searched)";
  const auto degree = [&](const char* name, std::optional<int>& into, const char* doc) {
    app.add_option(name, into, doc)->check(CLI::Range(1, 1 << 20))->group(pins);
  };
  degree("--pp", o->pins.pp, "pipeline stages");
  degree("--tp", o->pins.tp, "tensor parallel");
  degree("--cp", o->pins.cp, "context parallel");
  degree("--ep", o->pins.ep, "expert parallel");
  degree("--etp", o->pins.etp, "expert tensor parallel");
  degree("--dp-replicate", o->pins.dp_replicate, "data-parallel replicas (HSDP)");
  degree("--dp-shard", o->pins.dp_shard, "data-parallel ranks that share one copy (FSDP)");
  degree("--expert-shard", o->pins.expert_shard, "expert-data ranks that share one copy of the experts");
  app.add_option("--micro-batch", o->pins.micro_batch, "sequences per micro-batch and data rank")->check(CLI::Range(std::int64_t{1}, kMax))->group(pins);
  app.add_option("--recompute", o->recompute, "none, selective or full")->group(pins);
  app.add_option("--schedule", o->schedule, "1f1b, interleaved, zero_bubble or expert_overlap")->group(pins);
  app.add_option("--virtual-stages", o->pins.virtual_stages, "chunks of layers a pipeline stage holds")->check(CLI::Range(1, 128))->group(pins);
  app.add_option("--expert-chunks", o->pins.expert_chunks, "pieces of a micro-batch whose expert exchange overlaps the experts")->check(CLI::Range(std::int64_t{1}, std::int64_t{64}))->group(pins);
  app.add_option("--stage-layers", o->pins.stage_layers, "layers of each pipeline stage, e.g. 15,16,15,15")->delimiter(',')->check(CLI::Range(std::int64_t{1}, std::int64_t{10000}))->group(pins);
  app.add_option("--dispatch", o->dispatch, "type in which tokens travel to experts: bf16, fp8, or auto (searched; fp8 changes results)")->group(pins);
  app.add_option("--dispatch-route", o->route, "two_hop (once to each node) or direct (once to each rank)")->group(pins);
  app.add_option("--capacity-factor", o->capacity, "rows an expert takes over the mean, or auto (searched; it changes results); dropless without")
      ->check([](const std::string& text) { return text == "auto" || factor(text) ? std::string() : shown(text) + " is neither auto nor a number from 0.001 to 1024"; })
      ->group(pins);
  app.add_option("--overflow", o->overflow, "beyond it: drop_probability, drop_position, reroute, or auto (dropping and rerouting searched)")->group(pins);
  app.add_flag("--pad-to-capacity", o->pad, "experts always work on their full capacity")->group(pins);
  app.add_option("--expert-replicas", o->pins.expert_replicas, "expert slots beyond one each, over the expert group")->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))->group(pins);
  app.add_option("--expert-placement", o->placement, "contiguous, balanced or hierarchical")->group(pins);
  app.add_option("--context-exchange", o->context_exchange, "how attention crosses context ranks: ring or all_to_all")->group(pins);
  app.add_option("--state-passing", o->state_passing, "how recurrent states cross context ranks: chain or scan")->group(pins);
  return o;
}

}  // namespace moeplan::cli
