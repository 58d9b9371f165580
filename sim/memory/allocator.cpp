#include "sim/memory/allocator.hpp"

#include <algorithm>
#include <cassert>

namespace moeplan {
namespace {

constexpr std::int64_t kMinBlock = 512, kSmallSize = 1 << 20, kSmallSegment = 2 << 20, kLargeSegment = 20 << 20,
                       kMinLarge = 10 << 20, kRoundLarge = 2 << 20;
/// Segments lie far apart, so that neighbours of different segments never look adjacent.
constexpr std::int64_t kSegmentGap = std::int64_t{1} << 44;

std::int64_t up_to(std::int64_t size, std::int64_t step) { return (size + step - 1) / step * step; }
std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::int64_t CachingAllocator::rounded(std::int64_t size) { return std::max(kMinBlock, up_to(size, kMinBlock)); }

std::int64_t CachingAllocator::segment_size(std::int64_t size) {
  if (size <= kSmallSize) return kSmallSegment;
  return size < kMinLarge ? kLargeSegment : up_to(size, kRoundLarge);
}

std::int32_t CachingAllocator::add_block(Block block) {
  if (dead_.empty()) {
    blocks_.push_back(block);
    return static_cast<std::int32_t>(blocks_.size() - 1);
  }
  const std::int32_t id = dead_.back();
  dead_.pop_back();
  blocks_[index(id)] = block;
  return id;
}

void CachingAllocator::put_unused(std::int32_t id) {
  const Block& b = blocks_[index(id)];
  pools_[index(b.pool)].unused.emplace(b.size, b.address, id);
}

/// A block of at least `size` bytes from the driver; -1 where the capacity does not hold it.
std::int32_t CachingAllocator::grow(std::int32_t pool_id, std::int64_t size) {
  Pool& pool = pools_[index(pool_id)];
  const auto fits = [&](std::int64_t more) {
    return options_.capacity.value == 0 || reserved_ + more <= options_.capacity.value;
  };
  if (options_.expandable_segments) {
    const std::int64_t page = pool.small ? kSmallSegment : kLargeSegment;
    std::int32_t last = pool.last;
    const bool reuse = last >= 0 && !blocks_[index(last)].in_use;
    const std::int64_t more = up_to(size - (reuse ? blocks_[index(last)].size : 0), page);
    if (!fits(more)) return -1;
    reserved_ += more;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    if (reuse) {
      Block& b = blocks_[index(last)];
      pool.unused.erase({b.size, b.address, last});
      b.size += more;
      return last;
    }
    Block b{.address = 0, .size = more, .previous = last, .pool = pool_id};
    if (last >= 0)
      b.address = blocks_[index(last)].address + blocks_[index(last)].size;
    else
      b.address = next_address_, next_address_ += kSegmentGap, ++segments_;
    const std::int32_t id = add_block(b);
    if (last >= 0) blocks_[index(last)].next = id;
    pools_[index(pool_id)].last = id;
    return id;
  }
  const std::int64_t segment = segment_size(size);
  if (!fits(segment)) {
    release_unused();
    if (!fits(segment)) return -1;
  }
  reserved_ += segment;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  ++segments_;
  const std::int64_t address = next_address_;
  next_address_ += kSegmentGap;
  return add_block({.address = address, .size = segment, .pool = pool_id});
}

CachingAllocator::Handle CachingAllocator::allocate(Bytes bytes, int stream) {
  const std::int64_t size = rounded(bytes.value);
  const bool small = size <= kSmallSize;
  const auto [found, fresh] = pool_of_.try_emplace({stream, small}, static_cast<std::int32_t>(pools_.size()));
  if (fresh) pools_.push_back({.unused = {}, .small = small});
  const std::int32_t pool_id = found->second;
  std::int32_t id = -1;
  if (const auto fit = pools_[index(pool_id)].unused.lower_bound({size, -1, -1});
      fit != pools_[index(pool_id)].unused.end()) {
    id = std::get<2>(*fit);
    pools_[index(pool_id)].unused.erase(fit);
  } else {
    id = grow(pool_id, size);
    if (id < 0) return -1;
  }
  const std::int64_t left = blocks_[index(id)].size - size;
  if (small || options_.expandable_segments ? left >= kMinBlock : left > kSmallSize) {
    const Block whole = blocks_[index(id)];
    const std::int32_t rest =
        add_block({.address = whole.address + size, .size = left, .previous = id, .next = whole.next, .pool = pool_id});
    if (whole.next >= 0) blocks_[index(whole.next)].previous = rest;
    blocks_[index(id)].size = size;
    blocks_[index(id)].next = rest;
    if (pools_[index(pool_id)].last == id) pools_[index(pool_id)].last = rest;
    put_unused(rest);
  }
  blocks_[index(id)].in_use = true;
  allocated_ += blocks_[index(id)].size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return id;
}

/// Joins a block with its unused neighbours; returns the joined block, which is in no pool.
std::int32_t CachingAllocator::merged(std::int32_t id) {
  const auto absorb = [&](std::int32_t left, std::int32_t right) {
    Block &a = blocks_[index(left)], &b = blocks_[index(right)];
    a.size += b.size;
    a.next = b.next;
    if (b.next >= 0) blocks_[index(b.next)].previous = left;
    if (pools_[index(a.pool)].last == right) pools_[index(a.pool)].last = left;
    b.alive = false;
    dead_.push_back(right);
  };
  const auto take = [&](std::int32_t other) {
    const Block& b = blocks_[index(other)];
    pools_[index(b.pool)].unused.erase({b.size, b.address, other});
  };
  if (const std::int32_t next = blocks_[index(id)].next; next >= 0 && !blocks_[index(next)].in_use)
    take(next), absorb(id, next);
  if (const std::int32_t previous = blocks_[index(id)].previous; previous >= 0 && !blocks_[index(previous)].in_use) {
    take(previous);
    absorb(previous, id);
    return previous;
  }
  return id;
}

void CachingAllocator::free(Handle handle) {
  assert(handle >= 0 && blocks_[index(handle)].in_use && "freed twice");
  blocks_[index(handle)].in_use = false;
  if (!blocks_[index(handle)].released) allocated_ -= blocks_[index(handle)].size;
  blocks_[index(handle)].released = false;
  put_unused(merged(handle));
}

void CachingAllocator::release(Handle handle) {
  Block& block = blocks_[index(handle)];
  assert(handle >= 0 && block.in_use && !block.released && "released twice");
  block.released = true;
  allocated_ -= block.size;
}

void CachingAllocator::release_unused() {
  if (options_.expandable_segments) return;
  for (Pool& pool : pools_) {
    for (auto it = pool.unused.begin(); it != pool.unused.end();) {
      Block& b = blocks_[index(std::get<2>(*it))];
      if (b.previous >= 0 || b.next >= 0) {
        ++it;
        continue;
      }
      reserved_ -= b.size;
      --segments_;
      b.alive = false;
      dead_.push_back(std::get<2>(*it));
      it = pool.unused.erase(it);
    }
  }
}

}  // namespace moeplan
