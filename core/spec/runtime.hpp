#pragma once
/// Who runs the plan, as data: what it keeps in which type, what it adds in memory, what it overlaps.

#include <map>
#include <string>

#include "core/dtype.hpp"
#include "core/fields.hpp"

namespace moeplan {

struct Runtime {
  std::string name = "moeplan";
  std::string source;
  DType gradient = DType::f32;                 ///< accumulated gradients of trained weights
  DType reduce = DType::f32;                   ///< type in which gradients cross the network
  bool master_weights = true;                  ///< trained weights are held as fp32 shards and cast when used (FSDP2)
  bool compute_copy = false;                   ///< a bf16 copy is held beside the fp32 master (Megatron's distributed optimizer)
  DType adapter = DType::f32;                  ///< storage of LoRA weights (the master copy where f32)
  Bytes context{};                             ///< driver context, kernels, libraries, per device
  Bytes communicator{};                        ///< per NCCL communicator
  double allocator_overhead = 0.0;             ///< reserved over allocated, minus 1
  bool fused_loss = true;                      ///< logits never whole: sequence x vocabulary chunks
  bool fused_lora = true;                      ///< adapter rides in the base GEMM; otherwise its own kernels
  bool fused_attention = true;
  bool grouped_experts = true;                 ///< one ragged GEMM for all local experts
  bool runs_quantised = true;                  ///< frozen weights dequantised inside the GEMM
  bool expert_overlap = false;                 ///< all-to-all hidden under other compute
  double expert_overlap_hidden = 0.0;          ///< share of the shorter of the two that is hidden
  bool deduplicated_dispatch = true;           ///< a token crosses to a node or rank once, however many of its experts are there
  std::int64_t prefetch = 1;                   ///< FSDP: blocks gathered ahead
  Seconds launch_overhead{};                   ///< added to each operator or communication call on the device's time line
  bool fused_qkv = false;                      ///< queries, keys and values come from one GEMM
  DType compute = DType::bf16;                 ///< type in which GEMMs of linear layers and experts multiply
  double cast_traffic = 0;                     ///< bytes moved per element of a GEMM's input or output gradient to bring it into `compute`
  bool distributed_optimizer = false;          ///< master weights and moments are cut over the data ranks, weights and gradients are not (ZeRO-1)
  bool reduce_once = false;                    ///< gradients cross the network once a step, not after each micro-batch
  bool overlap_reduce = false, overlap_gather = false;   ///< reduction under the backward pass, gathering of updated weights under the forward pass
  bool whole_logits = false;                   ///< logits are kept from forward to backward instead of being computed again
  double score_traffic = 0, score_traffic_backward = 0;  ///< unfused attention: bytes moved per pair of query and key and head; 0 where fused
  std::map<std::string, double> traffic;       ///< operator -> bytes it moves over what one fused kernel moves; "accumulate": 0 where weight gradients are added to in place
  std::map<std::string, double> kept;          ///< operator -> bytes kept for backward per element of its output, beyond what the contract keeps
  double logit_bytes = 0;                      ///< bytes per logit that the loss holds at its peak, where logits are whole
  double logit_kept = 0;                       ///< of these, those kept from forward to backward
  double score_kept = 0;                       ///< unfused attention: bytes kept for backward per pair of query and key and head
  DType moment = DType::f32;                   ///< of AdamW's two moments
  bool update_temporary = false;               ///< the update holds a temporary of one moment's size for all weights (PyTorch foreach)
  Seconds step_overhead{};                     ///< per step outside forward, backward and optimizer kernels (data, logging, host synchronisation)
  Bytes workspace{};                           ///< held in the allocator all the time (cuBLAS workspaces)
  Bytes bucket{};                              ///< of gradient reduction buffers beyond the gradients
  bool expandable_segments = false;            ///< of the caching allocator
  bool own_kernels = false;                    ///< this project's CUDA kernels: what scratch each call takes is known (kernels/device_scratch.hpp)
  bool staged = false;                         ///< calls to other ranks pass through one buffer that is held from the start (sim/program/staging.hpp)
  Seconds host_call{};                         ///< host time per operator call: the device waits where its work is shorter
  bool operator==(const Runtime&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("name", &Runtime::name).required(), field("source", &Runtime::source).required(), field("gradient", &Runtime::gradient), field("reduce", &Runtime::reduce),
        field("master_weights", &Runtime::master_weights), field("compute_copy", &Runtime::compute_copy), field("adapter", &Runtime::adapter), field("context", &Runtime::context).at_least(0).at_most(1e12),
        field("communicator", &Runtime::communicator).at_least(0).at_most(1e12), field("allocator_overhead", &Runtime::allocator_overhead).between(0, 1),
        field("fused_loss", &Runtime::fused_loss), field("fused_lora", &Runtime::fused_lora), field("fused_attention", &Runtime::fused_attention),
        field("grouped_experts", &Runtime::grouped_experts), field("runs_quantised", &Runtime::runs_quantised),
        field("expert_overlap", &Runtime::expert_overlap), field("expert_overlap_hidden", &Runtime::expert_overlap_hidden).between(0, 1),
        field("deduplicated_dispatch", &Runtime::deduplicated_dispatch), field("prefetch", &Runtime::prefetch).between(0, 8), field("launch_overhead", &Runtime::launch_overhead).at_least(0).at_most(1),
        field("fused_qkv", &Runtime::fused_qkv), field("compute", &Runtime::compute), field("cast_traffic", &Runtime::cast_traffic).between(0, 64),
        field("distributed_optimizer", &Runtime::distributed_optimizer), field("reduce_once", &Runtime::reduce_once), field("overlap_reduce", &Runtime::overlap_reduce),
        field("overlap_gather", &Runtime::overlap_gather), field("whole_logits", &Runtime::whole_logits), field("score_traffic", &Runtime::score_traffic).between(0, 256),
        field("score_traffic_backward", &Runtime::score_traffic_backward).between(0, 256), field("traffic", &Runtime::traffic).between(0, 64),
        field("kept", &Runtime::kept).between(0, 64), field("logit_bytes", &Runtime::logit_bytes).between(0, 256), field("logit_kept", &Runtime::logit_kept).between(0, 256), field("score_kept", &Runtime::score_kept).between(0, 256), field("moment", &Runtime::moment),
        field("update_temporary", &Runtime::update_temporary), field("step_overhead", &Runtime::step_overhead).at_least(0).at_most(1e4), field("workspace", &Runtime::workspace).at_least(0).at_most(1e12),
        field("bucket", &Runtime::bucket).at_least(0).at_most(1e12), field("expandable_segments", &Runtime::expandable_segments), field("own_kernels", &Runtime::own_kernels), field("staged", &Runtime::staged), field("host_call", &Runtime::host_call).at_least(0).at_most(1));
  }
};

}  // namespace moeplan
