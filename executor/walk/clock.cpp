/// When calls and copies ran, for whoever asked.

#include <algorithm>
#include <chrono>

#include "executor/walk/walk.hpp"

namespace moeplan {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

/// From here on the time is that of calls; what came before is not.
void Walk::begin_clock() {
  waited_ = false;
  if (clock_) timed_.emplace_back(nullptr, nullptr), backend_.stamp();
}

/// One stamp behind each call; one before the first of a pass.
void Walk::tell_clock() {
  if (!clock_) return;
  const std::vector<CopySpan> copies = timed_copies_.empty() ? std::vector<CopySpan>{} : backend_.copy_times();
  for (std::size_t c = 0; c < copies.size(); ++c)
    clock_(*timed_copies_[c].first, *timed_copies_[c].second, clocked_ + copies[c].begin, clocked_ + copies[c].end);
  timed_copies_.clear();
  backend_.time_copies(false);
  const std::vector<double> at = backend_.stamps();
  for (std::size_t c = 0; c < timed_.size(); ++c)
    if (timed_[c].first) clock_(*timed_[c].first, *timed_[c].second, clocked_ + at[c - 1], clocked_ + at[c]);
  for (const Awaited& a : awaited_) {
    a.of->seconds += a.way.seconds();
    a.of->waited += a.way.begun ? at[a.stamp] - at[a.stamp - 1] : a.way.blocked;
  }
  if (!at.empty()) clocked_ += at.back();
  timed_.clear(), awaited_.clear();
}

/// With the device idle before and after.
void Walk::apart(const std::function<void()>& communication) {
  if (!options_.slice || !ranks_) return communication();
  backend_.wait();
  const double begin = seconds_now();
  communication();
  backend_.wait();
  communication_seconds_ += seconds_now() - begin;
}

}  // namespace moeplan
