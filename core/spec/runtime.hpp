#pragma once
/// Who runs the plan, as data: what it keeps in which type, what it adds in memory, what it overlaps.

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
  bool operator==(const Runtime&) const = default;
  static constexpr auto fields() {
    return std::make_tuple(
        field("name", &Runtime::name).required(), field("source", &Runtime::source).required(), field("gradient", &Runtime::gradient), field("reduce", &Runtime::reduce),
        field("master_weights", &Runtime::master_weights), field("compute_copy", &Runtime::compute_copy), field("adapter", &Runtime::adapter), field("context", &Runtime::context).at_least(0).at_most(1e12),
        field("communicator", &Runtime::communicator).at_least(0).at_most(1e12), field("allocator_overhead", &Runtime::allocator_overhead).between(0, 1),
        field("fused_loss", &Runtime::fused_loss), field("fused_lora", &Runtime::fused_lora), field("fused_attention", &Runtime::fused_attention),
        field("grouped_experts", &Runtime::grouped_experts), field("runs_quantised", &Runtime::runs_quantised),
        field("expert_overlap", &Runtime::expert_overlap), field("expert_overlap_hidden", &Runtime::expert_overlap_hidden).between(0, 1),
        field("deduplicated_dispatch", &Runtime::deduplicated_dispatch), field("prefetch", &Runtime::prefetch).between(0, 8), field("launch_overhead", &Runtime::launch_overhead).at_least(0).at_most(1));
  }
};

}  // namespace moeplan
