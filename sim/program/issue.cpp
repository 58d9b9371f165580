#include "sim/program/issue.hpp"

#include <algorithm>

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Issuer::Issuer(const Plan& plan, std::vector<IssueSlot> slots, std::vector<IssueChunk> chunks)
    : plan_(plan), slots_(std::move(slots)), chunks_(std::move(chunks)), there_(slots_.size(), false), gather_(slots_.size(), -1) {}

void Issuer::issue(const Turn& turn, std::vector<Instance>& out) {
  if (out.empty()) std::fill(gather_.begin(), gather_.end(), -1);   // earlier gathers are of another list
  out_ = &out;
  const IssueChunk& chunk = chunks_[index(turn.chunk)];
  switch (turn.kind) {
    case Turn::Kind::forward: forward(chunk, turn.micro_batch); break;
    case Turn::Kind::backward: backward(chunk, turn.micro_batch); break;
    case Turn::Kind::weight: weight(chunk, turn.micro_batch); break;
    case Turn::Kind::both: both(turn); break;
  }
}

std::int32_t Issuer::add(Instance i) {
  out_->push_back(std::move(i));
  return static_cast<std::int32_t>(out_->size() - 1);
}

/// Issues the gather of a slot of `chunk` if it is not there.
void Issuer::gather(std::int32_t s, const IssueChunk& chunk, std::int32_t j) {
  if (s < chunk.first || s >= chunk.end || !slot(s).gathers || there_[index(s)]) return;
  there_[index(s)] = true;
  gather_[index(s)] = add({.phase = Phase::gather, .slot = s, .micro_batch = j});
}

void Issuer::release(std::int32_t s, std::int32_t j, std::int32_t user) {
  if (!there_[index(s)]) return;
  there_[index(s)] = false;
  gather_[index(s)] = -1;
  add({.phase = Phase::release, .slot = s, .micro_batch = j, .after = {user}});
}

void Issuer::require(Instance& i, std::int32_t s) const {
  if (there_[index(s)] && gather_[index(s)] >= 0) i.after.push_back(gather_[index(s)]);
}

std::int32_t Issuer::receive(const IssueChunk& chunk, std::int32_t j, bool gradients) {
  const Bytes bytes = gradients ? chunk.leaving : chunk.entering;
  if (bytes.value <= 0) return -1;
  return add({.phase = Phase::send_receive, .micro_batch = j, .with_next = gradients, .received = bytes});
}

void Issuer::send(const IssueChunk& chunk, std::int32_t j, bool gradients, std::int32_t after) {
  const Bytes bytes = gradients ? chunk.entering : chunk.leaving;
  if (bytes.value <= 0 || after < 0) return;
  add({.phase = Phase::send_receive, .micro_batch = j, .with_next = !gradients, .sent = bytes, .after = {after}});
}

/// Whether the forward pass leaves the slot's copy for the backward pass. With resharding only the model's last slot: its backward
/// pass comes next (FSDP2 does not reshard the last block either).
bool Issuer::keeps_copy(const IssueChunk& chunk, std::int32_t s) const {
  return !plan_.reshard_after_forward || (s + 1 == chunk.end && chunk.leaving.value == 0);
}

void Issuer::after_backward(std::int32_t s, std::int32_t j, std::int32_t user) {
  release(s, j, user);
  if (slot(s).reduces && !slot(s).weight_backward) add({.phase = Phase::reduce, .slot = s, .micro_batch = j, .after = {user}});
}

void Issuer::finish_backward(const IssueChunk& chunk, std::int32_t j, std::int32_t last) {
  for (std::int32_t s = chunk.first; s < chunk.end; ++s)
    if (last >= 0) release(s, j, last);
  send(chunk, j, true, last);
}

void Issuer::forward(const IssueChunk& chunk, std::int32_t j) {
  std::int32_t before = receive(chunk, j, false);
  for (std::int32_t s = chunk.first; s < chunk.end; ++s) {
    for (std::int32_t ahead = s; ahead <= s + plan_.prefetch; ++ahead) gather(ahead, chunk, j);
    Instance i{.phase = Phase::forward, .slot = s, .micro_batch = j};
    if (before >= 0) i.after.push_back(before);
    require(i, s);
    before = add(std::move(i));
    if (!keeps_copy(chunk, s)) release(s, j, before);
  }
  send(chunk, j, false, before);
}

void Issuer::backward(const IssueChunk& chunk, std::int32_t j) {
  std::int32_t before = receive(chunk, j, true);
  for (std::int32_t s = chunk.end; s-- > chunk.first;) {
    if (!slot(s).backward) continue;
    for (std::int32_t ahead = s; ahead >= s - plan_.prefetch; --ahead) gather(ahead, chunk, j);
    Instance i{.phase = Phase::backward, .slot = s, .micro_batch = j};
    if (before >= 0) i.after.push_back(before);
    require(i, s);
    before = add(std::move(i));
    after_backward(s, j, before);
  }
  finish_backward(chunk, j, before);
}

void Issuer::weight(const IssueChunk& chunk, std::int32_t j) {
  for (std::int32_t s = chunk.end; s-- > chunk.first;) {
    if (!slot(s).weight_backward) continue;
    const std::int32_t here = add({.phase = Phase::weight_backward, .slot = s, .micro_batch = j});
    if (slot(s).reduces) add({.phase = Phase::reduce, .slot = s, .micro_batch = j, .after = {here}});
  }
}

/// The k-th slot forward beside the k-th backward; what one pass has more than the other runs alone after it.
void Issuer::both(const Turn& turn) {
  const IssueChunk &fc = chunks_[index(turn.forward_chunk)], &bc = chunks_[index(turn.chunk)];
  const std::int32_t fj = turn.forward_micro_batch, bj = turn.micro_batch;
  std::int32_t f_before = receive(fc, fj, false), b_before = receive(bc, bj, true);
  std::vector<std::int32_t> back;
  for (std::int32_t s = bc.end; s-- > bc.first;)
    if (slot(s).backward) back.push_back(s);
  const auto n = std::max(static_cast<std::size_t>(fc.end - fc.first), back.size());
  for (std::size_t k = 0; k < n; ++k) {
    const std::int32_t f = k < static_cast<std::size_t>(fc.end - fc.first) ? fc.first + static_cast<std::int32_t>(k) : -1;
    const std::int32_t b = k < back.size() ? back[k] : -1;
    for (std::int32_t ahead = 0; ahead <= plan_.prefetch; ++ahead) {
      if (f >= 0) gather(f + ahead, fc, fj);
      if (b >= 0) gather(b - ahead, bc, bj);
    }
    Instance i{.phase = b < 0 ? Phase::forward : f < 0 ? Phase::backward : Phase::forward_backward, .slot = b < 0 ? f : b, .micro_batch = b < 0 ? fj : bj};
    if (f >= 0 && b >= 0) i.forward_slot = f, i.forward_micro_batch = fj;
    if (f >= 0 && f_before >= 0) i.after.push_back(f_before);
    if (b >= 0 && b_before >= 0 && b_before != f_before) i.after.push_back(b_before);
    if (f >= 0) require(i, f);
    if (b >= 0 && b != f) require(i, b);
    const std::int32_t here = add(std::move(i));
    if (f >= 0) f_before = here;
    if (b >= 0) b_before = here;
    if (f >= 0 && f != b && !keeps_copy(fc, f)) release(f, fj, here);
    if (b >= 0) after_backward(b, bj, here);
    if (f >= 0 && f + 1 == fc.end) send(fc, fj, false, f_before);
  }
  finish_backward(bc, bj, b_before);
}

}  // namespace moeplan
