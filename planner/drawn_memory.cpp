#include "planner/drawn_memory.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

double bytes_of(const std::array<Bytes, kMemoryCategories>& categories) {
  double sum = 0;
  for (const Bytes b : categories) sum += static_cast<double>(b.value);
  return sum;
}

class Walk {
 public:
  Walk(const StageBytes& stage, const DrawnRows& rows, std::span<const double> factors)
      : stage_(stage), rows_(rows), factors_(factors), now_(index(rows.ranks), stage.standing + stage.replicas), peak_(now_), staged_(now_.size(), 0) {
    hold_staged();
  }

  double run(double allocator_overhead) {
    for (const Instance& x : stage_.instances)
      if (x.slot >= 0) step(x);
    double most = 0;
    for (std::size_t r = 0; r < peak_.size(); ++r) most = std::max(most, peak_[r] * (1 + allocator_overhead) + staged_[r]);
    return most;
  }

 private:
  using Curve = std::vector<double> KindBytes::*;

  /// Calls `use(rank, bytes)` with the curve's bytes at each rank's rows.
  template <class Use>
  void each(std::int32_t slot, std::int32_t micro_batch, Curve curve, const Use& use, double least = 0) const {
    const SlotBytes& s = stage_.slots[index(slot)];
    const std::vector<double>& at = s.kind->*curve;
    if (at.empty()) return;
    const double* rows = s.moe < 0 || at.size() == 1 ? nullptr : &rows_.of[index((s.moe * rows_.distinct + micro_batch % rows_.distinct) * rows_.ranks)];
    for (std::size_t r = 0; r < now_.size(); ++r) {
      if (!rows) { use(r, at[0]); continue; }
      const Between b = between_factors(std::max(rows[r], least), factors_);
      use(r, std::max(0.0, at[b.low] + b.share * (at[b.low + 1] - at[b.low])));
    }
  }
  void add(std::int32_t slot, std::int32_t j, Curve curve, double sign, double least = 0) {
    each(slot, j, curve, [&](std::size_t r, double b) { now_[r] += sign * b; }, least);
  }
  /// The largest buffer of a slot, and the ways of all, each at its fullest micro-batch.
  void hold_staged() {
    std::vector<double> ways(now_.size(), 0);
    for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(stage_.slots.size()); ++slot) {
      std::vector<double> most(now_.size(), 0);
      for (std::int32_t j = 0; j < rows_.distinct; ++j) {
        each(slot, j, &KindBytes::buffer, [&](std::size_t r, double b) { staged_[r] = std::max(staged_[r], b); }, rows_.buffer);
        each(slot, j, &KindBytes::ways, [&](std::size_t r, double b) { most[r] = std::max(most[r], b); }, rows_.buffer);
      }
      for (std::size_t r = 0; r < now_.size(); ++r)
        staged_[r] = std::max(staged_[r], static_cast<double>(stage_.slots[index(slot)].fixed.staged.buffer.value)), ways[r] += most[r] * stage_.kept_ways;
    }
    for (std::size_t r = 0; r < now_.size(); ++r) staged_[r] += ways[r];
  }
  void add(double bytes) { for (double& n : now_) n += bytes; }
  void consider(std::int32_t slot, std::int32_t j, Curve curve, double more) {
    each(slot, j, curve, [&](std::size_t r, double b) { peak_[r] = std::max(peak_[r], now_[r] + b + more); }, rows_.buffer);
  }

  void enter(std::int32_t slot, std::int32_t j) {
    const std::int32_t chunk = stage_.slots[index(slot)].fixed.chunk;
    if (!std::exchange(carried_[{chunk, j}], true)) add(static_cast<double>(stage_.chunks[index(chunk)].carried.value));
  }

  double backward_more(std::int32_t slot) const {
    const SlotMemory& s = stage_.slots[index(slot)].fixed;
    const ChunkMemory& c = stage_.chunks[index(s.chunk)];
    return unreduced_ + (slot + 1 < c.end || !c.ends_model ? static_cast<double>(s.carried_gradients.value) : 0);
  }
  void after_backward(std::int32_t slot, std::int32_t j) {
    const SlotBytes& s = stage_.slots[index(slot)];
    add(slot, j, &KindBytes::put_off, 1);
    unreduced_ = s.kind->weight_backward.empty() ? static_cast<double>(s.fixed.unreduced.value) : 0;
    const ChunkMemory& c = stage_.chunks[index(s.fixed.chunk)];
    for (std::int32_t b = c.first; b < slot; ++b)
      if (stage_.slots[index(b)].fixed.has_backward) return;
    add(-static_cast<double>(c.carried.value));
  }

  void step(const Instance& x) {
    const SlotMemory& fixed = stage_.slots[index(x.slot)].fixed;
    switch (x.phase) {
      case Phase::gather: add(static_cast<double>(fixed.gathered.value)); break;
      case Phase::release: add(-static_cast<double>(fixed.gathered.value)); break;
      case Phase::forward:
        enter(x.slot, x.micro_batch);
        consider(x.slot, x.micro_batch, &KindBytes::forward, 0);
        add(x.slot, x.micro_batch, &KindBytes::kept, 1);
        unreduced_ = 0;
        break;
      case Phase::backward:
        add(x.slot, x.micro_batch, &KindBytes::kept, -1);
        consider(x.slot, x.micro_batch, &KindBytes::backward, backward_more(x.slot));
        after_backward(x.slot, x.micro_batch);
        break;
      case Phase::forward_backward:
        enter(x.forward_slot, x.forward_micro_batch);
        add(x.slot, x.micro_batch, &KindBytes::kept, -1);
        add(x.forward_slot, x.forward_micro_batch, &KindBytes::forward, 1, rows_.buffer);
        consider(x.slot, x.micro_batch, &KindBytes::backward, backward_more(x.slot));
        add(x.forward_slot, x.forward_micro_batch, &KindBytes::forward, -1, rows_.buffer);
        after_backward(x.slot, x.micro_batch);
        add(x.forward_slot, x.forward_micro_batch, &KindBytes::kept, 1);
        break;
      case Phase::weight_backward:
        add(x.slot, x.micro_batch, &KindBytes::put_off, -1);
        consider(x.slot, x.micro_batch, &KindBytes::weight_backward, unreduced_);
        unreduced_ = static_cast<double>(fixed.unreduced.value);
        break;
      default: break;
    }
  }

  const StageBytes& stage_;
  const DrawnRows& rows_;
  std::span<const double> factors_;
  std::vector<double> now_, peak_, staged_;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> carried_;
  double unreduced_ = 0;
};

}  // namespace

void KindBytes::add(const BlockMemory& m) {
  forward.push_back(bytes_of(m.forward.at_peak));
  backward.push_back(bytes_of(m.backward.at_peak));
  kept.push_back(bytes_of(m.kept));
  buffer.push_back(static_cast<double>(m.staged.buffer.value));
  ways.push_back(static_cast<double>(m.staged.ways.value));
  if (m.weight_backward.peak_at.empty()) return;
  weight_backward.push_back(bytes_of(m.weight_backward.at_peak));
  put_off.push_back(bytes_of(m.put_off));
}

double drawn_peak(const StageBytes& stage, const DrawnRows& rows, double allocator_overhead, std::span<const double> factors) {
  return Walk(stage, rows, factors).run(allocator_overhead) + stage.outside_allocator;
}

}  // namespace moeplan
