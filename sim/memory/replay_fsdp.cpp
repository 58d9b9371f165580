#include "sim/memory/replay_fsdp.hpp"

#include <cmath>
#include <utility>

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Of a weight as it runs.
Bytes running(const Weight& w, const Runtime& runtime, const Parallelism& p) {
  if (!ReplayFsdp::wraps(w, p)) return {};
  const auto several = runtime.kept.find("adapters");
  const double copies = w.adapter && several != runtime.kept.end() ? several->second : 1;
  const Bytes one = stored_bytes(w.dtype == DType::f32 ? DType::bf16 : w.dtype, w.shape);
  return {std::llround(copies * static_cast<double>(one.value))};
}

}  // namespace

bool ReplayFsdp::used(const Problem& problem, const Plan& plan) {
  const auto it = problem.runtime.kept.find("copied_out");
  if (it == problem.runtime.kept.end() || problem.runtime.distributed_optimizer) return false;
  const Parallelism& p = plan.parallelism;
  return p.dp_shard * p.cp > 1 || (it->second > 1 && p.dp_replicate == 1);
}

ReplayFsdp::ReplayFsdp(const Program& program, const Problem& problem, const Plan& plan, ReplayBuffers& buffers)
    : program_(program),
      problem_(problem),
      plan_(plan),
      buffers_(buffers),
      root_unit_(problem.runtime.kept.contains("root_unit")) {}

bool ReplayFsdp::wraps(const Weight& w, const Parallelism& p) {
  const bool expert = w.split == WeightSplit::expert || w.split == WeightSplit::expert_row;
  return !expert || p.ep * p.etp == 1 || p.expert_shard > 1;
}

Bytes ReplayFsdp::whole(const Block& block, const Runtime& runtime, const Parallelism& p) {
  Bytes bytes{};
  for (const Weight& w : block.weights) bytes += running(w, runtime, p);
  return bytes;
}

Bytes ReplayFsdp::whole(std::int32_t slot) const {
  return whole(program_.blocks[index(program_.slots[index(slot)].block)], problem_.runtime, plan_.parallelism);
}

bool ReplayFsdp::in_root(std::int32_t slot) const {
  const std::int32_t layer = program_.slots[index(slot)].layer;
  return root_unit_ && (layer < 0 || layer == static_cast<std::int32_t>(problem_.model.layers.size()));
}

void ReplayFsdp::copy_out(std::int32_t slot) {
  std::vector<Buffer>& weights = unsharded_[slot];
  for (const Weight& w : program_.blocks[index(program_.slots[index(slot)].block)].weights)
    if (const Bytes bytes = running(w, problem_.runtime, plan_.parallelism); bytes.value > 0)
      weights.push_back(buffers_.take(bytes));
}

void ReplayFsdp::unshard(std::int32_t slot, bool backward) {
  if (unsharded_.contains(slot)) return;
  if (in_root(slot)) {
    Bytes all{};
    std::vector<std::int32_t> unit;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(program_.slots.size()); ++s)
      if (in_root(s)) unit.push_back(s), all += whole(s);
    buffers_.drop(std::exchange(gathered_, buffers_.take(all, kGatherStream)));
    for (const std::int32_t s : unit) copy_out(s);
    return;
  }
  const auto ahead = ahead_.find(slot);
  const Buffer gathered = ahead == ahead_.end() ? buffers_.take(whole(slot), kGatherStream) : ahead->second;
  if (ahead != ahead_.end()) ahead_.erase(ahead);
  if (!backward) buffers_.drop(std::exchange(gathered_, gathered));
  copy_out(slot);
  if (!backward) return;
  buffers_.drop(gathered);
  const std::int32_t before = slot - 1;
  if (before >= 0 && program_.slots[index(before)].chunk == program_.slots[index(slot)].chunk && !in_root(before) &&
      !unsharded_.contains(before))
    ahead_[before] = buffers_.take(whole(before), kGatherStream);
}

void ReplayFsdp::reshard(std::int32_t slot, bool backward) {
  const auto it = unsharded_.find(slot);
  if (it == unsharded_.end() || in_root(slot)) return;
  const ProgramChunk& chunk = program_.chunks[index(program_.slots[index(slot)].chunk)];
  const bool last = chunk.leaving.value == 0 && slot + (root_unit_ ? 2 : 1) >= chunk.end;
  if (!backward && (last || !plan_.reshard_after_forward)) return;
  buffers_.drop_all(it->second);
  unsharded_.erase(it);
}

void ReplayFsdp::end_forward() { buffers_.drop(std::exchange(gathered_, -1)); }

/// Into the buffer that the reduction reads; the one before it has gone by then.
void ReplayFsdp::copy_in(double elements) {
  buffers_.drop(std::exchange(reducing_, -1));
  reducing_ = buffers_.take({std::llround((problem_.runtime.reduce == DType::f32 ? 4 : 2) * elements)});
}

void ReplayFsdp::reduce(std::int32_t slot, std::vector<Buffer>& whole) {
  const Slot& s = program_.slots[index(slot)];
  double elements = 0, apart = 0;
  for (const Weight& w : program_.blocks[index(s.block)].weights)
    if (w.trained) (wraps(w, plan_.parallelism) ? elements : apart) += static_cast<double>(w.shape.elements());
  const Bytes of_apart{std::llround((problem_.runtime.gradient == DType::f32 ? 4 : 2) * apart)};
  if (const auto [own, fresh] = apart_.try_emplace(slot, -1); fresh) own->second = buffers_.take(of_apart);
  if (elements <= 0) return;
  if (in_root(slot)) {
    root_elements_ += elements;
    root_whole_.insert(root_whole_.end(), whole.begin(), whole.end());
    whole.clear();
  } else {
    copy_in(elements);
    buffers_.drop_all(whole);
  }
  Buffer& held = gradients_.try_emplace(slot, -1).first->second;
  const Buffer reduced = buffers_.take(s.state.gradients - of_apart, kReduceStream);
  if (held < 0)
    held = reduced;
  else  // added to what is there
    buffers_.drop(reduced);
}

void ReplayFsdp::end_backward() {
  if (root_elements_ > 0) copy_in(std::exchange(root_elements_, 0));
  buffers_.drop_all(root_whole_);
  buffers_.drop(std::exchange(reducing_, -1));
  for (const auto& [slot, b] : ahead_) buffers_.drop(b);
  ahead_.clear();
  for (auto& [slot, weights] : unsharded_)
    if (in_root(slot)) buffers_.drop_all(weights);
  std::erase_if(unsharded_, [&](const auto& entry) { return in_root(entry.first); });
}

void ReplayFsdp::drop_gradients() {
  for (auto* held : {&gradients_, &apart_}) {
    for (const auto& [slot, b] : *held) buffers_.drop(b);
    held->clear();
  }
}

}  // namespace moeplan
