#include "executor/comm/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moeplan {

std::string Snapshot::text() const {
  if (!in_call) return phase + ", outside communication";
  return fmt::format("{}, {} #{} on {}", phase, operation, sequence, communicator);
}

void Progress::set_phase(std::string phase) {
  const std::lock_guard lock(mutex_);
  now_.phase = std::move(phase);
  if (!now_.in_call) since_ = Clock::now();
  if (told_) told_();
}

void Progress::on_phase(std::function<void()> told) {
  const std::lock_guard lock(mutex_);
  told_ = std::move(told);
}

void Progress::set_limit(Duration limit, Duration together) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
  together_ = together;
}

void Progress::set_stall(Duration stall) {
  const std::lock_guard lock(mutex_);
  if (stall_.count() > 0 && stall.count() == 0) untold_since_ = Clock::now();
  now_.stall = stall_ = stall;
  if (!now_.in_call) since_ = Clock::now();
}

void Progress::advance(Duration next) {
  const std::lock_guard lock(mutex_);
  now_.stall = stall_.count() > 0 ? std::max(stall_, next) : stall_;
  if (!now_.in_call) since_ = Clock::now();
}

void Progress::enter(const std::string& communicator, const std::string& operation, std::uint64_t sequence, std::vector<int> members,
                     bool collective) {
  const std::lock_guard lock(mutex_);
  now_.in_call = true;
  now_.communicator = communicator;
  now_.operation = operation;
  now_.sequence = sequence;
  now_.members = std::move(members);
  now_.limit = limit_;
  now_.together = std::max(limit_, together_);
  now_.stall = stall_;
  if (collective) now_.entered[communicator] = sequence;
  since_ = Clock::now();
}

void Progress::leave() {
  const std::lock_guard lock(mutex_);
  now_.in_call = false;
  now_.stall = stall_;
  since_ = Clock::now();
}

Snapshot Progress::snapshot() const {
  const std::lock_guard lock(mutex_);
  Snapshot copy = now_;
  const auto now = Clock::now();
  copy.elapsed = std::chrono::duration_cast<Duration>(now - since_);
  if (turns_ && now_.in_call) copy.still = std::chrono::duration_cast<Duration>(now - std::max(since_, Clock::time_point(Clock::duration(turned_.load(std::memory_order_relaxed)))));
  if (untold_since_) copy.untold = std::chrono::duration_cast<Duration>(now - *untold_since_);
  return copy;
}

}  // namespace moeplan
