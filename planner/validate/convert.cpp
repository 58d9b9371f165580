#include "planner/validate/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "core/configs.hpp"
#include "kernels/catalogue.hpp"
#include "planner/validate/adapt_runtime.hpp"
#include "planner/validate/facts.hpp"
#include "planner/validate/model_config.hpp"
#include "planner/validate/versions.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/runtime_names.hpp"

namespace moeplan::validation {
namespace {

/// From one node of a CUDA graph to the next, measured on one H200, 2026-11-29 (runtimes/moeplan.json).
constexpr double kGraphNode = 0.8e-6;

[[noreturn]] void refuse(const std::string& what) { throw InputError("row", what); }

std::string lower(const std::optional<std::string>& text) {
  std::string out = text.value_or("");
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool any_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return text.find(w) != std::string::npos; });
}

/// The cluster of the row: its device, as many as it says, in the machines that it says, on the wires that it says.
ClusterSpec cluster_of_row(const Row& row, const Library& library, const HardwareWords& hardware) {
  const DeviceEntry entry = load_device(library.configs, hardware.device);
  const std::int64_t gpus = *row.gpus;
  ClusterSpec c;
  c.name = fmt::format("{}x{}", gpus, entry.device.name);
  c.device = entry.device;
  c.devices_per_node = std::min(gpus, row.gpus_per_node.value_or(entry.node.devices));
  if (gpus % c.devices_per_node != 0) c.devices_per_node = gpus;
  c.nodes = gpus / c.devices_per_node;
  c.host_memory = entry.node.host_memory;
  std::vector<LinkTier> tiers = entry.node.tiers;
  const std::string where = row.interconnect.value_or("") + " | " + described(row) + " | " + *row.hardware;
  for (const NetworkWords& n : library.words.networks) {
    if (!contains(where, n.contains)) continue;
    const auto same = std::find_if(tiers.begin(), tiers.end(), [&](const LinkTier& t) {
      return (t.kind == LinkKind::network) == (n.tier.kind == LinkKind::network);
    });
    if (same != tiers.end()) *same = n.tier;
  }
  for (LinkTier& tier : tiers) {
    if (tier.kind != LinkKind::network && tier.span > 0 && tier.span < entry.node.devices * 2)
      tier.span = std::min<std::int64_t>(tier.span, c.devices_per_node);
    // A rack of 72 runs jobs of a power of two: 64 of its devices.
    while (tier.span > 0 && tier.span < gpus && gpus % tier.span != 0) --tier.span;
    if (!c.tiers.empty() && tier.span > 0 && tier.span <= c.tiers.back().span) continue;
    c.tiers.push_back(tier);
    if (tier.span == 0 || tier.span >= gpus) {
      c.tiers.back().span = gpus;
      break;
    }
  }
  c.tiers.back().span = std::max(c.tiers.back().span, gpus);
  return c;
}

Tuning lora(std::int64_t rank) {
  return {.training = Training::lora, .rank = rank, .alpha = 2.0 * static_cast<double>(rank)};
}

Workload workload_of(const Row& row, const ModelSpec& model) {
  Workload w;
  w.name = row.id;
  w.sequence_length = *row.sequence;
  const std::string method = lower(row.method), optimizer = lower(row.optimizer), targets = lower(row.lora_targets);
  const Tuning full{.training = Training::full};
  for (Tuning Workload::*each :
       {&Workload::attention, &Workload::dense, &Workload::shared, &Workload::experts, &Workload::router,
        &Workload::embedding, &Workload::head, &Workload::norm, &Workload::other})
    w.*each = method.find("lora") == std::string::npos ? full : Tuning{};
  if (method.find("lora") != std::string::npos) {
    const std::int64_t rank = std::max<std::int64_t>(1, row.lora_rank.value_or(64));
    const bool all = targets.empty() || any_of(targets, {"all-linear", "*_proj", "all linear"});
    if (all || any_of(targets, {"q_proj", "qkv", "attention", "c_attn", "q,", "attn"})) w.attention = lora(rank);
    const bool dense = std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& l) {
      return std::any_of(l.sublayers.begin(), l.sublayers.end(),
                         [](const Sublayer& s) { return std::holds_alternative<DenseFfn>(s.mixer); });
    });
    const bool experts = std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& l) {
      return std::any_of(l.sublayers.begin(), l.sublayers.end(),
                         [](const Sublayer& s) { return std::holds_alternative<MoeFfn>(s.mixer); });
    });
    const bool feed_forward = all || any_of(targets, {"up", "down", "gate", "mlp", "w1", "fc"});
    if (dense && feed_forward) w.dense = lora(rank);
    if (experts && (all || feed_forward || targets.find("expert") != std::string::npos)) w.experts = lora(rank);
    if (targets.find("trainable embedding") != std::string::npos) w.embedding = w.head = full;
    if (w.attention.training == Training::frozen && w.dense.training == Training::frozen &&
        w.experts.training == Training::frozen)
      w.attention = lora(rank);
  }
  if (any_of(optimizer, {"8bit", "8-bit"})) w.optimizer = OptimizerKind::adamw8bit;
  return w;
}

/// Storage of frozen weights, as "nf4 4-bit base" and the like say.
DType storage_of(const Row& row) {
  // FSDP2 over parameters in fp32 holds those of a frozen base in it too.
  if (contains(row.precision.value_or(""), "fp32 stored parameters")) return DType::f32;
  if (lower(row.method) != "qlora") return DType::bf16;
  const std::string precision = lower(row.precision);
  return any_of(precision, {"gptq", "int4"}) ? DType::int4 : DType::nf4;
}

DType compute_of(const Row& row) {
  const std::string p = lower(row.precision);
  if (any_of(p, {"nvfp4", "mxfp4", "fp4"}) && !any_of(p, {"4-bit base", "nf4"})) return DType::nvfp4;
  return any_of(p, {"fp8"}) ? DType::fp8 : DType::bf16;
}

Recompute recompute_of(const Row& row) {
  const std::string r = lower(row.recompute);
  if (r.empty() || any_of(r, {"none", "not set", "selective: core_attn"}) || r == "false") return Recompute::none;
  // MaxText's save_dot_with_context_except_mlp repeats the feed-forward products: 0.8 of a layer's.
  if (any_of(r, {"except_mlp"})) return Recompute::full;
  if (any_of(r, {"selective", "rmsnorm", "save_dot", "per-op"})) return Recompute::selective;
  return Recompute::full;
}

/// The row names a preset, or nothing: what was recomputed is not known.
bool recompute_unsaid(const Row& row) {
  const std::string r = lower(row.recompute);
  return r.empty() ||
         any_of(r, {"not set", "none set in workload preset", "none stated", "none in recipe", "see script"});
}

/// What the row says is in host memory. Shares below all of it count as none.
Offload offload_of(const Row& row) {
  const std::string o = lower(row.offload);
  if (any_of(o, {"parameter offload", "fsdp cpu offload"}) || o == "cpu offload") return Offload::optimizer_weights;
  if (any_of(o, {"activation"})) return Offload::activations;
  if (any_of(o, {"optimizer"}) && !any_of(o, {"25%", "50%", "75%"})) return Offload::optimizer;
  return Offload::none;
}

Sharding sharding_of(const Row& row, Sharding otherwise) {
  const std::string s = lower(row.sharding);
  if (any_of(s, {"no-shard", "no shard", "single", "not stated"}) || s == "none" || s.rfind("ddp dp", 0) == 0)
    return Sharding::replicated;
  if (any_of(s, {"megatron-fsdp", "fsdp", "full_shard", "full-shard", "zero-3", "zero3"})) return Sharding::full;
  if (any_of(s, {"dist-optimizer", "distributed optimizer", "zero-1", "zero1", "zero-2", "zero2"}))
    return Sharding::optimizer;
  if (s.rfind("dp=", 0) == 0 || s.rfind("ddp", 0) == 0)
    return otherwise == Sharding::full ? Sharding::replicated : otherwise;
  return otherwise;
}

/// Size of the group that shards, where the words give one smaller than all data ranks ("zero-1 within 8 GPUs").
std::int64_t shard_group(const Row& row, std::int64_t dp) {
  static const std::regex within(R"((?:within|size) (\d+))"),
      hybrid(R"(hsdp[^0-9]*\d+\s*x\s*(\d+)|shard(?:ing)? (\d+) x)");
  const std::string s = lower(row.sharding);
  std::smatch found;
  if (std::regex_search(s, found, within) && found[1].length() < 7) {
    const std::int64_t n = std::stoll(found[1]);
    if (n > 0 && dp % n == 0) return n;
  }
  if (std::regex_search(s, found, hybrid)) {
    const std::string digits = found[1].matched ? found[1].str() : found[2].str();
    if (digits.size() < 7)
      if (const std::int64_t n = std::stoll(digits); n > 0 && dp % n == 0) return n;
  }
  return dp;
}

/// Layers per stage: as even as whole layers allow, the remainder in the middle, away from embedding and head.
std::vector<std::int64_t> split_layers(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  std::int64_t left = layers % stages;
  for (std::int64_t i = 0; i < stages && left > 0; ++i) {
    const std::int64_t at = (i + 1) % stages == stages - 1 ? i : (i + 1) % stages;
    if (stages > 2 && at == stages - 1) continue;
    ++out[static_cast<std::size_t>(at)];
    --left;
  }
  for (std::size_t i = 0; left > 0; ++i, --left) ++out[i % out.size()];
  return out;
}

/// DeepSpeed's balanced partition fills stages from the front with the fewest layers that suffice.
std::vector<std::int64_t> fill_stages(std::int64_t layers, std::int64_t stages) {
  const std::int64_t each = (layers + stages - 1) / stages;
  std::vector<std::int64_t> out;
  for (std::int64_t s = 0; s < stages; ++s) {
    out.push_back(std::clamp<std::int64_t>(layers - (stages - s - 1), 1, each));
    layers -= out.back();
  }
  return out;
}

Plan plan_of(const Row& row, const ModelSpec& model, Sharding sharding, const Runtime& runtime) {
  Plan plan;
  Parallelism& p = plan.parallelism;
  p.tp = static_cast<int>(row.tp.value_or(1));
  p.pp = static_cast<int>(row.pp.value_or(1));
  p.cp = static_cast<int>(row.cp.value_or(1));
  p.ep = static_cast<int>(row.ep.value_or(1));
  const std::int64_t ranks = static_cast<std::int64_t>(p.tp) * p.pp * p.cp;
  if (*row.gpus % ranks != 0)
    refuse(fmt::format("{} devices do not divide by pp {} x tp {} x cp {}", *row.gpus, p.pp, p.tp, p.cp));
  const std::int64_t dp = *row.gpus / ranks, stage = dp * p.tp * p.cp;
  p.etp = static_cast<int>(row.etp.value_or(1));
  if (stage % (static_cast<std::int64_t>(p.ep) * p.etp) != 0)
    refuse(fmt::format("ep {} x etp {} does not divide the {} ranks of a stage", p.ep, p.etp, stage));
  const std::int64_t shards = sharding == Sharding::replicated ? 1 : shard_group(row, dp);
  p.dp_shard = static_cast<int>(shards);
  p.dp_replicate = static_cast<int>(dp / shards);
  if (sharding != Sharding::replicated) p.expert_shard = p.expert_data();
  plan.micro_batch = *row.micro_batch;
  // Where a batch is not the same for all data ranks, or ends in a smaller micro-batch, the fullest rank takes the time.
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t sequences = up(row.global_batch.value_or(dp * plan.micro_batch), dp);
  plan.micro_batch = std::min(plan.micro_batch, sequences);
  plan.micro_batches = up(sequences, plan.micro_batch);
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  if (p.pp > layers) refuse(fmt::format("{} stages for {} layers", p.pp, layers));
  const bool fills = contains(runtime.name, "deepspeed") && !contains(row.notes.value_or(""), "embedding balanced");
  plan.stage_layers = fills ? fill_stages(layers, p.pp) : split_layers(layers, p.pp);
  plan.recompute = recompute_of(row);
  plan.frozen_storage = storage_of(row);
  plan.loss_chunks = runtime.whole_logits || !runtime.fused_loss ? 1 : 8;
  plan.prefetch = runtime.prefetch;
  plan.offload = offload_of(row);
  if (p.cp > 1 && contains(described(row), "CP a2a")) plan.context_exchange = ContextExchange::all_to_all;
  plan.reshard_after_forward = lower(row.sharding).find("no reshard") == std::string::npos;
  return plan;
}

/// Attention that stays within documents packed into a sequence is that of shorter sequences, as many more of them: of
/// whole parts of the sequence, the shortest that hold a document. Context ranks cut sequences, so theirs stay whole.
void cut_into_documents(Workload& workload, Plan& plan, std::int64_t document) {
  if (plan.parallelism.cp > 1) return;
  std::int64_t parts = std::max<std::int64_t>(1, workload.sequence_length / document);
  while (workload.sequence_length % parts != 0) --parts;
  workload.sequence_length /= parts;
  plan.micro_batch *= parts;
}

std::vector<Target> targets_of(const Row& row, PeakKind kind) {
  std::vector<Target> out;
  constexpr double gib = 1024.0 * 1024 * 1024;
  const Measurements& m = row.measured;
  if (m.step_time_s)
    out.push_back({Measure::step_time, *m.step_time_s});
  else if (m.tokens_per_s_per_gpu && row.global_batch && row.sequence && row.gpus)
    out.push_back({Measure::step_time, static_cast<double>(*row.global_batch) * static_cast<double>(*row.sequence) /
                                           (*m.tokens_per_s_per_gpu * static_cast<double>(*row.gpus))});
  if (m.peak_memory_gib_per_gpu) {
    const bool allocated = kind == PeakKind::allocated || row.peak_reserved_gib;
    out.push_back({allocated ? Measure::peak_allocated : Measure::peak_reserved, *m.peak_memory_gib_per_gpu * row.memory_unit * gib,
                   kind == PeakKind::device});
  }
  if (row.peak_reserved_gib) out.push_back({Measure::peak_reserved, *row.peak_reserved_gib * row.memory_unit * gib});
  return out;
}

bool has_experts(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& l) {
    return std::any_of(l.sublayers.begin(), l.sublayers.end(),
                       [](const Sublayer& s) { return std::holds_alternative<MoeFfn>(s.mixer); });
  });
}

/// More tensor ranks than key and value heads: each rank holds a head that others hold too, as if there were one for
/// each.
void repeat_kv_heads(ModelSpec& model, std::int64_t tp) {
  for (LayerSpec& layer : model.layers)
    for (Sublayer& s : layer.sublayers)
      if (auto* a = std::get_if<GqaAttention>(&s.mixer);
          a && a->kv_heads < tp && tp % a->kv_heads == 0 && a->heads % tp == 0)
        a->kv_heads = tp;
}

/// Layers of multi-token prediction run behind the others, as often as it predicts.
void run_mtp(ModelSpec& model, std::int64_t depth) {
  for (std::int64_t i = 0; i < depth; ++i)
    model.layers.insert(model.layers.end(), model.mtp_layers.begin(), model.mtp_layers.end());
  model.mtp_layers.clear(), model.mtp_extra.clear(), model.mtp_copies.clear();
}

void fuse_qkv(ModelSpec& model) {
  for (LayerSpec& layer : model.layers)
    for (Sublayer& s : layer.sublayers)
      if (auto* a = std::get_if<GqaAttention>(&s.mixer);
          a && a->q_latent == 0 && a->gate == OutputGate::none && !a->k_is_v)
        a->fused_qkv = true;
}

}  // namespace

std::optional<std::string> missing_field(const Row& said, const Library& library) {
  const Row row = with_facts(said, library.words);
  if (!row.gpus) return "num_gpus is missing";
  if (!row.sequence) return "seq_len is missing";
  if (!row.micro_batch) return "micro_batch_size is missing";
  if (!row.hardware) return "hardware is missing";
  if (!hardware_of(row, library.words)) return "hardware \"" + *row.hardware + "\" is not known";
  const ModelDims dims = dims_of(row, library);
  if (!dims.hidden && !model_in_library(row, dims, library))
    return "the dimensions of model " + row.model + " are not known";
  if (targets_of(row, PeakKind::reserved).empty() && !row.failed)
    return "neither step time, throughput with a global batch, nor peak memory is given";
  return std::nullopt;
}

Case convert(const Row& said, const Library& library) {
  if (const auto missing = missing_field(said, library)) refuse(*missing);
  const Row row = with_facts(said, library.words);
  const HardwareWords& hardware = *hardware_of(row, library.words);
  const FrameworkWords* framework = framework_of(row, library.words);
  Case out;
  out.id = row.id;
  out.source = row.source_title.value_or(row.framework);
  out.hardware = hardware.device;
  out.high = row.confidence.value_or("high") == "high";
  out.failed = row.failed;
  Problem& problem = out.problem;
  const ModelDims dims = dims_of(row, library);
  problem.model_name = row.model;
  if (const auto known = model_in_library(row, dims, library)) {
    JsonLimits limits;
    limits.tolerate_nonfinite_literals = true;
    problem.model_config = load_json(find_config(library.configs, "models", *known), limits);
  } else {
    problem.model_config = model_config(dims, row.model, *row.sequence);
  }
  problem.model = import_model(problem.model_config, row.model, row.model);
  // A pipeline's layout leaves room for them on the last stage (Megatron-Bridge, recipes/deepseek).
  if (const std::int64_t depth = row.mtp_depth.value_or(0);
      depth > 0 && !problem.model.mtp_layers.empty() && row.pp.value_or(1) == 1)
    run_mtp(problem.model, depth), out.extra_heads = static_cast<int>(depth);
  if (problem.model.learned_positions > 0)
    problem.model.learned_positions = std::max(problem.model.learned_positions, *row.sequence);
  problem.cluster = cluster_of_row(row, library, hardware);
  problem.cluster.device.sustained = hardware.sustained;
  problem.workload = workload_of(row, problem.model);
  problem.runtime = load_runtime(library.configs, framework ? framework->runtime : "torchtitan");
  check_names(problem.runtime);
  Runtime& runtime = problem.runtime;
  const Sharding sharding = sharding_of(row, framework ? framework->sharding : Sharding::full);
  runtime.compute = compute_of(row);
  adapt_runtime(runtime, row, sharding, problem.model,
                runtime.name == "torchtitan" || runtime.name == "prime-rl" ? load_runtime(library.configs, "hf-peft")
                                                                           : Runtime{});
  repeat_kv_heads(problem.model, row.tp.value_or(1));
  if (runtime.fused_qkv) fuse_qkv(problem.model);
  problem.profile = load_profile(
      library.configs, framework && framework->profile ? *framework->profile : hardware.profile.value_or("h200"));
  out.plan = plan_of(row, problem.model, sharding, runtime);
  if (row.document) cut_into_documents(problem.workload, out.plan, *row.document);
  for (const AttentionWords& a : library.words.attention) {
    if (!contains(described(row), a.contains) || a.generation != problem.cluster.device.generation) continue;
    use_attention(problem.profile, a, library.words.attention_reach, problem.cluster.device,
                  problem.workload.sequence_length);
    break;
  }
  out.recompute_unsaid = recompute_unsaid(row) && out.plan.recompute == Recompute::none;
  const std::string remarks = row.moe_notes.value_or("") + " | " + row.notes.value_or("");
  out.overlaps_exchange = runtime.expert_overlap && has_experts(problem.model) && !contains(remarks, "overlap off") &&
                          any_of(remarks, {"A2A overlap", "EP comm overlap", "EP overlap on", "EP overlap=True",
                                        "EP overlap +", "EP overlap;"});
  const bool drops =
      any_of(lower(remarks), {"token drop", "token-drop", "capacity factor", "tokens dropped", "paged stash"});
  out.host = {.graphs = graphs_of(row),
              .narrow = runtime.compute != DType::bf16 && has_experts(problem.model),
              .takes_turns = runtime.traffic.contains("launch_blocking"),
              .reads_counts = has_experts(problem.model) && !drops && !out.overlaps_exchange};
  if (out.host.graphs == Graphs::whole && runtime.launch_overhead.value > kGraphNode)
    runtime.launch_overhead = {kGraphNode};
  out.paged_optimizer = contains(row.optimizer.value_or(""), "paged");
  out.every_second_product = contains(row.framework, "torchtitan") && out.plan.recompute == Recompute::selective;
  out.compiled = contains(row.notes.value_or("") + row.id, "compile");
  // cuDNN's attention, which Blackwell runs, was not on torchtitan's list from May to December 2025.
  const Month sources = sources_of(row).value_or(Month{});
  out.attention_again = problem.cluster.device.generation == "blackwell" && sources >= Month{2025, 5} &&
                        sources < Month{2025, 12};
  out.kind = framework && framework->profile ? "profiled"
                                             : std::string(has_experts(problem.model) ? "experts, " : "dense, ") +
                                                   (problem.cluster.nodes > 1 ? "several nodes" : "one node");
  out.virtual_stages = static_cast<int>(std::max<std::int64_t>(1, row.vpp.value_or(1)));
  out.targets = targets_of(row, framework ? framework->peak : PeakKind::reserved);
  return out;
}

}  // namespace moeplan::validation
