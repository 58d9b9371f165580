#pragma once
/// Entry points of the family files; only `architectures.cpp` includes this.

#include "sim/program/architectures/common.hpp"

namespace moeplan::import {

ModelSpec llama(const ConfigReader& root);
ModelSpec qwen_moe(const ConfigReader& root);
ModelSpec mixtral(const ConfigReader& root);
ModelSpec olmoe(const ConfigReader& root);
ModelSpec qwen_next(const ConfigReader& root);
ModelSpec llama4(const ConfigReader& root);
ModelSpec gemma4(const ConfigReader& root);
ModelSpec deepseek(const ConfigReader& root);
ModelSpec deepseek_v4(const ConfigReader& root);
ModelSpec kimi_k25(const ConfigReader& root);
ModelSpec kimi_linear(const ConfigReader& root);
ModelSpec glm4_moe(const ConfigReader& root);
ModelSpec glm_dsa(const ConfigReader& root);
ModelSpec glm5_next(const ConfigReader& root);
ModelSpec minimax_m1(const ConfigReader& root);
ModelSpec minimax_m2(const ConfigReader& root);
ModelSpec minimax_m3(const ConfigReader& root);
ModelSpec gpt_oss(const ConfigReader& root);
ModelSpec nemotron_h(const ConfigReader& root);
ModelSpec ling(const ConfigReader& root);
ModelSpec hunyuan_v1(const ConfigReader& root);
ModelSpec hunyuan_v4(const ConfigReader& root);
ModelSpec ernie(const ConfigReader& root);
ModelSpec dots(const ConfigReader& root);
ModelSpec granite_hybrid(const ConfigReader& root);
ModelSpec jamba(const ConfigReader& root);
ModelSpec phi_moe(const ConfigReader& root);
ModelSpec dbrx(const ConfigReader& root);
ModelSpec arctic(const ConfigReader& root);
ModelSpec grok(const ConfigReader& root);
ModelSpec step3(const ConfigReader& root);
ModelSpec step3p5(const ConfigReader& root);
ModelSpec longcat(const ConfigReader& root);
ModelSpec mimo(const ConfigReader& root);
ModelSpec megatron_gpt(const ConfigReader& root);

/// Vision towers, as tensors that are counted and resident.
std::vector<IdleTensor> moonvit(const ConfigReader& vision, std::int64_t text_hidden);
std::vector<IdleTensor> qwen_vision(const ConfigReader& vision);
std::vector<IdleTensor> llama4_vision(const ConfigReader& vision, std::int64_t text_hidden);
std::vector<IdleTensor> glm_vision(const ConfigReader& vision);
std::vector<IdleTensor> gemma4_vision(const ConfigReader& vision, std::int64_t text_hidden);
std::vector<IdleTensor> step3_vision(const ConfigReader& root, const ConfigReader& vision, std::int64_t text_hidden);

}  // namespace moeplan::import
