#include "planner/validate/adapt_runtime.hpp"

#include "kernels/catalogue.hpp"
#include "planner/validate/versions.hpp"

namespace moeplan::validation {
namespace {

/// Without sequence parallelism every tensor rank holds, normalises and adds all tokens of the residual stream, not its
/// share of them.
void repeat_on_tensor_ranks(Runtime& runtime, double tp) {
  for (const char* op : {"rms_norm", "layer_norm", "add"}) {
    double& factor = runtime.traffic.try_emplace(op, 1.0).first->second;
    factor *= tp;
  }
  for (const char* op : {"rms_norm", "layer_norm"})
    runtime.kept[op] += 4 * (tp - 1);  // what is normalised and what comes of it, bf16
  runtime.kept["stream"] += 2 * (tp - 1);
}

}  // namespace

void adapt_runtime(Runtime& runtime, const Row& row, Sharding sharding, const ModelSpec& model,
                   const Runtime& eager) {
  if (contains(row.optimizer.value_or(""), "bf16 moments")) runtime.moment = DType::bf16;
  if (sharding == Sharding::full) runtime.distributed_optimizer = false, runtime.reduce_once = false;
  if (sharding == Sharding::replicated) runtime.distributed_optimizer = false;
  // Under autocast FSDP holds what is trained in fp32, and with it gradients and moments (fms-acceleration's recipes).
  if (sharding == Sharding::full && contains(row.precision.value_or(""), "with bf16 autocast") &&
      contains(row.method.value_or(""), "full"))
    runtime.master_weights = true, runtime.gradient = runtime.reduce = runtime.moment = DType::f32;
  // FSDP registers the resharding of frozen weights as a hook on the gradients of a layer's inputs, and holds it to the
  // end of the backward pass (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook).
  // Under reentrant checkpointing those inputs are leaves, so their accumulators stay, with each checkpoint and its
  // gradient.
  if (contains(runtime.name, "hf") && sharding == Sharding::full && *row.gpus > 1 &&
      contains(row.method.value_or(""), "lora"))
    runtime.kept["held_checkpoint"] = 1;
  // Without autocast pairs in fp32 multiply in fp32, and what dropout leaves stays fp32.
  if (runtime.traffic.contains("wide_pair") && contains(row.precision.value_or(""), "no autocast"))
    runtime.traffic["wide_pair"] = 2, runtime.kept["dropped_input"] = 5;
  // Under autocast torch.nn.LayerNorm gives fp32, bitsandbytes' products give back the type they were given, and so
  // GELU, sums and dropout run in fp32 between casts: 20 bytes an element of a norm instead of 4 (cast r2 w4, r4 w4,
  // cast back r4 w2), of an activation (product cast to fp32, GELU, cast back) likewise, 12 of a sum instead of 6.
  if (contains(runtime.name, "hf") && model.family == "gpt" && contains(row.method.value_or(""), "qlora"))
    runtime.traffic["layer_norm"] = runtime.traffic["activation"] = 5, runtime.traffic["add"] = 2;
  // GPT-2's and GPT-BigCode's loss leaves logits in bf16, unless the head was upcast for quantised training.
  if (contains(runtime.name, "hf") && model.family == "gpt" && !contains(row.method.value_or(""), "lora"))
    runtime.logit_bytes = 6, runtime.logit_kept = 4;
  // With Liger's kernels, where a row names them, the loss goes over hidden states in pieces and logits are never whole;
  // norms, rotary embedding and SiLU with its product are one kernel each (linkedin/Liger-Kernel, monkey_patch.py: on
  // by default; the bytes are those of runtimes/hf-liger.json).
  if (contains(runtime.name, "hf") && runtime.whole_logits && contains(row.notes.value_or(""), "liger")) {
    runtime.fused_loss = true, runtime.whole_logits = false, runtime.logit_bytes = runtime.logit_kept = 0;
    for (const char* op : {"rms_norm", "rope", "glu"}) runtime.traffic[op] = 1;
    runtime.traffic["cross_entropy"] = 6;
  }
  // Qwen's finetune.py trains quantised bases and whole models through DeepSpeed's engine, which has no autocast: the loss
  // stays in 16 bits (logits, their shifted copy, log-softmax; the last is kept).
  if (contains(row.framework, "finetune.py") && row.method.value_or("") != "lora")
    runtime.logit_bytes = 6, runtime.logit_kept = 2;
  // Its quantised runs take ds_config_zero2.json: gradients in two buckets of 2e8 fp16 elements (contiguous, overlapped).
  if (contains(row.framework, "finetune.py") && row.method.value_or("") == "qlora") runtime.bucket += Bytes{2 * 2 * 200'000'000};
  // Until PyTorch 2.1 the foreach AdamW adds epsilon into a second list of all trained elements (torch/optim/adamw.py).
  std::optional<Release> pytorch = release_of(row, "PyTorch");
  if (!pytorch) pytorch = release_of(row, "torch");
  if (runtime.update_temporary && pytorch && *pytorch < Release{2, 1}) runtime.kept["second_temporary"] = 1;
  // PEFT's modules_to_save are copies in the type of the base, trained as they are, beside the originals: with a base in
  // bf16 gradients and moments are bf16, adapters too (before PEFT 0.12).
  if (contains(row.lora_targets.value_or(""), "trainable embedding")) {
    runtime.master_weights = false, runtime.adapter = DType::bf16;
    runtime.gradient = runtime.reduce = runtime.moment = DType::bf16;
    runtime.workspace += Bytes{2 * 2 * model.vocabulary * model.hidden};
  }
  // DeepSpeed's ZeRO-1 holds gradients in the weights' 16 bits; only its BF16 optimizer adds them up in fp32.
  if (contains(runtime.name, "deepspeed") && contains(row.optimizer.value_or(""), "zero-1") &&
      !contains(row.optimizer.value_or(""), "fp32 grad"))
    runtime.gradient = runtime.reduce = DType::bf16;
  // That one reads the 16-bit gradient and the sum, writes the sum, and keeps the former until the next backward pass.
  if (contains(runtime.name, "deepspeed") && contains(row.optimizer.value_or(""), "fp32 grad"))
    runtime.traffic["gradient_sum"] = 10, runtime.kept["narrow_gradients"] = 2;
  // torchao's rowwise recipe scales each operand along both of its dimensions: twice an amax (read) and a cast (read,
  // written in one byte), where one scale a tensor needs one cast that also writes the transpose.
  if (runtime.name == "torchtitan" && contains(row.precision.value_or(""), "rowwise")) runtime.cast_traffic = 10;
  if (contains(row.optimizer.value_or(""), "optimizer-in-backward")) runtime.kept["update_in_backward"] = 1;
  // "Selective" names the core attention where it is unfused: its scores are computed again instead of being kept.
  if (runtime.score_kept > 0 && contains(row.recompute.value_or(""), "core_attn"))
    runtime.score_kept = 0, runtime.score_traffic_backward += runtime.score_traffic;
  // torchtitan without torch.compile: norms, rotary embedding, SiLU and its product, and the loss over logits in fp32
  // are operations of their own, as counted for Hugging Face's (runtimes/hf-peft.json).
  if (runtime.name == "torchtitan" && !contains(row.notes.value_or("") + row.id, "compile")) {
    for (const char* op : {"rms_norm", "rope", "glu"}) runtime.traffic[op] = eager.traffic.at(op);
    runtime.traffic["cross_entropy"] = 12;
  }
  // Its launcher sets expandable segments; others that its runtime stands for do not, and ROCm has none of them (PyTorch
  // before 2.10).
  if (runtime.name == "torchtitan" && (!contains(row.framework, "torchtitan") || contains(row.hardware.value_or(""), "mi300") ||
                                       contains(row.notes.value_or(""), "no expandable segments")))
    runtime.expandable_segments = false;
  const std::optional<Month> sources = sources_of(row);
  // With torch.compile torchtitan compiles the loss too (since April 2025): one kernel reads bf16 logits,
  // another writes their gradient.
  if (runtime.name == "torchtitan" && contains(row.notes.value_or("") + row.id, "compile") &&
      sources.value_or(Month{}) >= Month{2025, 4}) {
    runtime.logit_bytes = 4, runtime.logit_kept = 2, runtime.traffic["cross_entropy"] = 4;
    runtime.kept.erase("eager_cross_entropy");
    runtime.kept["compiled_cross_entropy"] = 1;
  }
  // Embedding, last norm and head were the root's unit until July 2025 (torchtitan, apply_fsdp).
  if (runtime.name == "torchtitan" && sources.value_or(Month{}) < Month{2025, 8}) runtime.kept["root_unit"] = 1;
  // Others that its runtime stands for are of FSDP1.
  if (runtime.name == "torchtitan" && !contains(row.framework, "torchtitan")) runtime.kept.erase("copied_out");
  // prime-rl's RL loss has a chunked head; its SFT loss takes whole logits: upcast (6 bytes), log-softmax (8), and back
  // the same way, while the caller's dictionary holds the upcast ones (trainer/sft/train.py).
  if (runtime.name == "prime-rl" && contains(row.notes.value_or(""), "logits not chunked")) {
    runtime.fused_loss = false, runtime.whole_logits = true;
    runtime.logit_bytes = 16, runtime.logit_kept = 8, runtime.traffic["cross_entropy"] = 14;
    runtime.kept["eager_cross_entropy"] = runtime.kept["held_logits"] = 1;
    runtime.kept.erase("chunked_head"), runtime.traffic.erase("head_in_pieces");
  }
  if (contains(row.lora_targets.value_or(""), "up to 4 concurrent adapters")) runtime.kept["adapters"] = 4;
  // Its adapters' experts are one grouped product on compute capability 9 alone, elsewhere a loop of eager operations
  // (trainer/models/layers/lora/multi_moe.py): as long for the host as Hugging Face's.
  if (runtime.name == "prime-rl" && contains(row.method.value_or(""), "lora") && !contains(*row.hardware, "h100") && !contains(*row.hardware, "h200"))
    runtime.traffic["looped_experts"] = 1, runtime.host_call = eager.host_call;
  // AutoModel's models with experts gather weights once a step and hold them, and reduce gradients once (its recipes'
  // enable_fsdp_optimizations, components/moe/fsdp_mixin.py; resharding after the forward pass is off,
  // components/moe/parallelizer.py).
  if (runtime.name == "automodel" && contains(row.model_kind.value_or(""), "moe")) runtime.traffic["copied_once"] = 1;
  // llm-foundry's H100 runs of 128 GPUs and more gather ahead (llm-foundry, scripts/train/benchmarking/sweep.py).
  if (runtime.name == "llm-foundry" && *row.gpus >= 128 && contains(row.hardware.value_or(""), "h100"))
    runtime.traffic.erase("gathers_after_backward");
  if (row.tp.value_or(1) > 1 && !row.sequence_parallel.value_or(runtime.deduplicated_dispatch))
    repeat_on_tensor_ranks(runtime, static_cast<double>(*row.tp));
  // Megatron's and torchtitan's all-to-all dispatchers send a copy for each expert of a token.
  if (contains(row.moe_notes.value_or(""), "dispatcher alltoall") || contains(row.moe_notes.value_or(""), "alltoall;"))
    runtime.deduplicated_dispatch = false;
}

/// Replaces what the profile says of attention by the utilisation that the framework's kernels are published with, on
/// this device and in sequences of this length.
void use_attention(DeviceProfile& profile, const AttentionWords& words, const ReachWords& reach, const DeviceSpec& device,
                   std::int64_t sequence) {
  const double scale = profile.device.name == device.name ? 1 : device.achieved_matmul / profile.device.achieved_matmul;
  for (ProfileSample& s : profile.samples) {
    const auto call = s.key.starts_with("attention ") ? parse_key(s.key) : std::nullopt;
    if (!call) continue;
    const bool forward = call->pass == Pass::forward;
    const double limit =
        flops(call->op, call->pass, possible(call->op, call->wants)).value / profile.device.peak.at("bf16").value;
    s.median = {limit * scale / (forward ? words.forward * reach_at(reach.lengths, reach.forward, sequence)
                         : words.backward * reach_at(reach.lengths, reach.backward, sequence))};
  }
}

}  // namespace moeplan::validation
