#pragma once
/// Buffers of a replay: counted handles into the caching allocator.

#include <vector>

#include "sim/memory/allocator.hpp"

namespace moeplan {

/// Streams that allocate: each has pools of its own. Collectives of FSDP gather into and reduce into theirs.
inline constexpr int kComputeStream = 0, kGatherStream = 1, kReduceStream = 2;

class ReplayBuffers {
 public:
  using Buffer = std::int32_t;  ///< -1: none

  explicit ReplayBuffers(CachingAllocator::Options options) : allocator_(options) {}

  Buffer take(Bytes size, int stream = kComputeStream) {
    if (size.value <= 0) return -1;
    Buffer b = static_cast<Buffer>(counted_.size());
    if (!unused_.empty())
      b = unused_.back(), unused_.pop_back();
    else
      counted_.emplace_back();
    at(b) = {allocator_.allocate(size, stream), 1};
    refused_ = refused_ || at(b).handle < 0;
    return b;
  }
  void hold(Bytes size) { (void)take(size); }
  /// A block's output may be kept by it and by the block that reads it.
  void share(Buffer b) {
    if (b >= 0) ++at(b).owners;
  }
  void drop(Buffer b) {
    if (b < 0 || --at(b).owners > 0) return;
    if (at(b).handle >= 0) allocator_.free(at(b).handle);
    unused_.push_back(b);
  }
  void drop_all(std::vector<Buffer>& list) {
    for (const Buffer b : list) drop(b);
    list.clear();
  }
  /// Freed by its last owner while another stream may still read it; true where the caller is to drop it later.
  bool release(Buffer b) {
    if (b < 0 || --at(b).owners > 0) return false;
    if (at(b).handle >= 0) allocator_.release(at(b).handle);
    at(b).owners = 1;
    return true;
  }

  [[nodiscard]] const CachingAllocator& allocator() const { return allocator_; }
  [[nodiscard]] bool refused() const { return refused_; }

 private:
  struct Counted {
    CachingAllocator::Handle handle = -1;
    int owners = 1;
  };
  Counted& at(Buffer b) { return counted_[static_cast<std::size_t>(b)]; }

  CachingAllocator allocator_;
  std::vector<Counted> counted_;
  std::vector<Buffer> unused_;
  bool refused_ = false;
};

}  // namespace moeplan
