#pragma once
/// PyTorch's CUDA caching allocator, replayed: which segments the driver is asked for as a sequence of allocations and
/// frees goes by. It gives reserved memory as a consequence of the buffers' sizes and order, not as a share of what is
/// allocated.
///
///   sizes are rounded to 512 B; up to 1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB ones, larger ones
///   get a segment of their own, rounded to 2 MiB. Each stream has its own two pools. A free block is chosen by best
///   fit (smallest, then lowest address) and split where what is left is at least 512 B (small pool) or more than 1 MiB
///   (large pool). Freed neighbours merge. With expandable segments each pool is one range that grows at its end, by
///   pages of 2 MiB (small pool) or 20 MiB.
/// Source: c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.10 (constants and rules, restated).

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/quantity.hpp"

namespace moeplan {

class CachingAllocator {
 public:
  struct Options {
    bool expandable_segments = false;
    Bytes capacity{};  ///< 0: unlimited. At it, unused segments are given back before the answer is no
  };
  using Handle = std::int32_t;

  CachingAllocator() = default;
  explicit CachingAllocator(Options options) : options_(options) {}

  /// Returns a handle for `free`; -1 where the capacity does not hold it. Zero bytes cost nothing.
  [[nodiscard]] Handle allocate(Bytes size, int stream = 0);
  void free(Handle handle);
  /// Freed by its owner while another stream may still read it (record_stream): no longer allocated, but not to be had
  /// again before `free`.
  void release(Handle handle);
  /// Gives unused whole segments back to the driver (empty_cache).
  void release_unused();

  [[nodiscard]] Bytes allocated() const { return {allocated_}; }
  [[nodiscard]] Bytes reserved() const { return {reserved_}; }
  [[nodiscard]] Bytes peak_allocated() const { return {peak_allocated_}; }
  [[nodiscard]] Bytes peak_reserved() const { return {peak_reserved_}; }
  [[nodiscard]] std::size_t segments() const { return segments_; }

  /// What a request of this size takes out of its pool, and the segment that is asked for when nothing fits.
  [[nodiscard]] static std::int64_t rounded(std::int64_t size);
  [[nodiscard]] static std::int64_t segment_size(std::int64_t rounded_size);

 private:
  struct Block {
    std::int64_t address = 0, size = 0;
    std::int32_t previous = -1, next = -1;  ///< neighbours in the segment
    std::int32_t pool = 0;
    bool in_use = false, alive = true, released = false;
  };
  using FreeKey = std::tuple<std::int64_t, std::int64_t, std::int32_t>;  ///< size, address, block
  struct Pool {
    std::set<FreeKey> unused;
    std::int32_t last = -1;  ///< expandable segments: the block at the end
    bool small = false;
  };

  std::int32_t add_block(Block block);
  void put_unused(std::int32_t block);
  std::int32_t grow(std::int32_t pool, std::int64_t size);
  std::int32_t merged(std::int32_t block);

  Options options_{};
  std::vector<Block> blocks_;
  std::vector<std::int32_t> dead_;
  std::map<std::pair<int, bool>, std::int32_t> pool_of_;
  std::vector<Pool> pools_;
  std::int64_t next_address_ = 0, allocated_ = 0, reserved_ = 0, peak_allocated_ = 0, peak_reserved_ = 0;
  std::size_t segments_ = 0;
};

}  // namespace moeplan
