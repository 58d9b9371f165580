#include "executor/comm/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "core/error.hpp"
#include "executor/comm/reduce.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kPage = 4096, kSlot = 64 << 10, kPairSlot = 16 << 10, kRanks = kMostSharedRanks, kMostGroups = 512;

/// How far a writer and its readers are; one cache line.
struct alignas(64) Line {
  std::atomic<std::uint64_t> published, consumed;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What a communicator has of the memory. Fresh pages are zeros; untouched ones cost nothing.
struct Segment {
  Line lines[kRanks];                     ///< rounds that a rank has written, and read
  Line pairs[kRanks][kRanks];             ///< pieces from one rank to another
  std::byte slots[kRanks][kSlot];         ///< what a rank shows all in this round
  std::byte pair_slots[kRanks][kRanks][kPairSlot];
};
struct Shared {
  alignas(kPage) std::atomic<std::uint64_t> groups;   ///< segments given out; the first is the world's
  alignas(kPage) Segment segments[kMostGroups];
};

/// This process's view, shared by its communicators.
struct World {
  Shared* shared = nullptr;
  Duration limit{};
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::string reason;   ///< written once, before `aborted`
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    if (shared) ::munmap(static_cast<void*>(shared), sizeof(Shared));
  }
};

class SharedMemory final : public Communicator {
 public:
  /// `offered`: rank 0's descriptor, for as long as others look for it.
  SharedMemory(std::string name, int rank, std::vector<int> ranks, std::shared_ptr<World> world, std::uint64_t group, std::optional<int> offered = {})
      : Communicator(std::move(name), rank, std::move(ranks)), world_(std::move(world)), segment_(world_->shared->segments[group]), offered_(offered) {}
  ~SharedMemory() override { withdraw(); }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(world_->mutex);
    if (world_->aborted) return;
    world_->reason = reason;
    world_->aborted = true;
  }

 private:
  using Bytes = std::span<const std::byte>;
  static Bytes bytes_of(const void* data, std::int64_t bytes) { return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)}; }
  [[nodiscard]] std::size_t own() const { return static_cast<std::size_t>(rank()); }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// Until `come(r)` for all ranks; looks often at first, then sleeps for a sixteenth of what it has waited, at most a millisecond.
  template <class Come>
  void await(const Call& call, Come come) {
    const auto begin = Clock::now(), end = begin + world_->limit;
    for (int turns = 0;; ++turns) {
      if (world_->aborted) throw error(CommFault::aborted, call, world_->reason);
      turn();
      std::string missing;
      for (std::size_t r = 0; r < ranks(); ++r)
        if (!come(r)) missing += (missing.empty() ? "" : ", ") + std::to_string(world_ranks()[r]);
      if (missing.empty()) return;
      const auto now = Clock::now();
      if (!watched() && now > end) throw error(CommFault::timeout, call, fmt::format("rank {} did not come within {} ms", missing, world_->limit.count()));
      if (turns < 100) std::this_thread::yield();
      else std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 16, std::chrono::microseconds(50), std::chrono::milliseconds(1)));
    }
  }

  /// Shows `mine` to all and waits until all have shown theirs; `done` must follow when the slots were read.
  void show(const Call& call, Bytes mine) {
    await(call, [&](std::size_t r) { return segment_.lines[r].consumed.load(std::memory_order_acquire) >= round_; });
    if (!mine.empty()) std::memcpy(segment_.slots[own()], mine.data(), mine.size());
    segment_.lines[own()].published.store(++round_, std::memory_order_release);
    await(call, [&](std::size_t r) { return segment_.lines[r].published.load(std::memory_order_acquire) >= round_; });
  }
  void done() { segment_.lines[own()].consumed.store(round_, std::memory_order_release); }

  /// All ranks' buffers pass by in pieces of a slot: `take(offset, bytes of the piece)` looks into the slots.
  template <class Take>
  void pass_by(const Call& call, Bytes mine, std::size_t longest, Take take) {
    for (std::size_t at = 0; at < longest; at += kSlot) {
      show(call, at < mine.size() ? mine.subspan(at, std::min(kSlot, mine.size() - at)) : Bytes{});
      take(at, std::min(kSlot, longest - at));
      done();
    }
  }
  [[nodiscard]] std::vector<const void*> all_slots() const {
    std::vector<const void*> out;
    for (std::size_t r = 0; r < ranks(); ++r) out.push_back(segment_.slots[r]);
    return out;
  }

  void do_connect(const Call& call) override {
    show(call, {});
    done();
    withdraw();   // all have opened it
  }
  void withdraw() {
    if (offered_) ::close(*offered_);
    offered_.reset();
  }

  void do_all_reduce(const Call& call, void* data) override {
    const std::int64_t width = element_size(call.dtype);
    const Bytes mine = bytes_of(data, call.count * width);
    const std::vector<const void*> parts = all_slots();
    pass_by(call, mine, mine.size(), [&](std::size_t at, std::size_t bytes) {
      void* const out[] = {static_cast<std::byte*>(data) + at};
      reduce_slice(parts, 0, static_cast<std::int64_t>(bytes) / width, call.dtype, call.reduction, out);
    });
  }
  void do_all_gather(const Call& call, const void* part, void* whole) override {
    const Bytes mine = bytes_of(part, call.count * element_size(call.dtype));
    pass_by(call, mine, mine.size(), [&](std::size_t at, std::size_t bytes) {
      for (std::size_t r = 0; r < ranks(); ++r) std::memcpy(static_cast<std::byte*>(whole) + r * mine.size() + at, segment_.slots[r], bytes);
    });
  }
  void do_reduce_scatter(const Call& call, const void* whole, void* part) override {
    const auto width = static_cast<std::size_t>(element_size(call.dtype));
    const std::size_t slice = static_cast<std::size_t>(call.count) * width, low = own() * slice, high = low + slice;
    const std::vector<const void*> parts = all_slots();
    pass_by(call, bytes_of(whole, static_cast<std::int64_t>(ranks() * slice)), ranks() * slice, [&](std::size_t at, std::size_t bytes) {
      const std::size_t begin = std::max(at, low), end = std::min(at + bytes, high);
      if (begin >= end) return;
      void* const out[] = {static_cast<std::byte*>(part) + (begin - low)};
      reduce_slice(parts, static_cast<std::int64_t>((begin - at) / width), static_cast<std::int64_t>((end - at) / width), call.dtype, call.reduction, out);
    });
  }
  void do_all_to_all(const Call& call, const void* send, std::span<const std::int64_t> send_counts, void* receive,
                     std::span<const std::int64_t> receive_counts) override {
    std::vector<std::int64_t> counts(ranks() * ranks());
    do_gather_words(call, send_counts, counts);
    const auto width = static_cast<std::size_t>(element_size(call.dtype));
    struct Part {
      std::size_t begin, end, to;   ///< bytes: of the sender's buffer, and of where they go
    };
    std::vector<Part> parts;
    std::size_t longest = 0, mine = 0, to = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      std::size_t before = 0, all = 0;
      for (std::size_t p = 0; p < ranks(); ++p) {
        const std::size_t bytes = static_cast<std::size_t>(counts[r * ranks() + p]) * width;
        if (p < own()) before += bytes;
        all += bytes;
      }
      const std::int64_t comes = counts[r * ranks() + own()];
      if (comes != receive_counts[r])
        throw error(CommFault::mismatch, call, fmt::format("rank {} sends {} elements, {} are expected", world_ranks()[r], comes, receive_counts[r]));
      const std::size_t bytes = static_cast<std::size_t>(comes) * width;
      parts.push_back({before, before + bytes, to});
      to += bytes;
      longest = std::max(longest, all);
      if (r == own()) mine = all;
    }
    pass_by(call, bytes_of(send, static_cast<std::int64_t>(mine)), longest, [&](std::size_t at, std::size_t bytes) {
      for (std::size_t r = 0; r < ranks(); ++r) {
        const std::size_t begin = std::max(at, parts[r].begin), end = std::min(at + bytes, parts[r].end);
        if (begin < end) std::memcpy(static_cast<std::byte*>(receive) + parts[r].to + (begin - parts[r].begin), segment_.slots[r] + (begin - at), end - begin);
      }
    });
  }

  /// One way between two ranks: its transfers in order, a piece at a time.
  struct Way {
    bool out = false;
    std::deque<std::pair<std::byte*, std::size_t>> left;   ///< where, bytes
  };
  /// True if a piece moved.
  bool advance(std::size_t peer, Way& way) {
    if (way.left.empty()) return false;
    const std::size_t from = way.out ? own() : peer, to = way.out ? peer : own();
    Line& line = segment_.pairs[from][to];
    const std::uint64_t written = line.published.load(std::memory_order_acquire), read = line.consumed.load(std::memory_order_acquire);
    if (way.out != (written == read)) return false;
    auto& [at, bytes] = way.left.front();
    const std::size_t piece = std::min(bytes, kPairSlot);
    std::byte* const slot = segment_.pair_slots[from][to];
    std::memcpy(way.out ? slot : at, way.out ? at : slot, piece);
    (way.out ? line.published : line.consumed).store((way.out ? written : read) + 1, std::memory_order_release);
    at += piece, bytes -= piece;
    if (bytes == 0) way.left.pop_front();
    return true;
  }
  void do_send_receive(const Call& call, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    std::map<std::pair<std::size_t, bool>, Way> ways;
    for (const bool out : {true, false})
      for (const Transfer& t : out ? sends : receives)
        if (const auto bytes = static_cast<std::size_t>(t.count * element_size(t.dtype)); bytes > 0) {
          Way& way = ways[{static_cast<std::size_t>(t.peer), out}];
          way.out = out;
          way.left.emplace_back(static_cast<std::byte*>(t.data), bytes);
        }
    await(call, [&](std::size_t r) {
      bool rest = false;
      for (const bool out : {true, false})
        if (const auto way = ways.find({r, out}); way != ways.end()) {
          while (advance(r, way->second)) {
          }
          rest = rest || !way->second.left.empty();
        }
      return !rest;
    });
  }
  void do_barrier(const Call& call) override {
    show(call, {});
    done();
  }
  void do_gather_words(const Call& call, std::span<const std::int64_t> words, std::span<std::int64_t> all) override {
    const Bytes mine = std::as_bytes(words);
    pass_by(call, mine, mine.size(), [&](std::size_t at, std::size_t bytes) {
      for (std::size_t r = 0; r < ranks(); ++r) std::memcpy(reinterpret_cast<std::byte*>(all.data()) + r * mine.size() + at, segment_.slots[r], bytes);
    });
  }

  std::unique_ptr<Communicator> do_split(const Call& call, std::optional<int> colour, int key, const std::string& label) override {
    const std::int64_t mine[] = {colour ? *colour : -1, key};
    std::vector<std::int64_t> all(2 * ranks());
    do_gather_words(call, mine, all);
    std::set<std::int64_t> colours;
    std::vector<std::size_t> members;
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (all[2 * r] >= 0) colours.insert(all[2 * r]);
      if (all[2 * r] == mine[0]) members.push_back(r);
    }
    std::int64_t first = rank() == 0 ? static_cast<std::int64_t>(world_->shared->groups.fetch_add(colours.size())) : 0;
    std::vector<std::int64_t> given(ranks());
    do_gather_words(call, {&first, 1}, given);
    first = given[0] + 1;   // behind the world's
    if (!colour) return nullptr;
    const std::uint64_t group = static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(std::distance(colours.begin(), colours.find(*colour)));
    if (group >= kMostGroups) throw error(CommFault::bad_call, call, fmt::format("more than {} groups of one world", kMostGroups));
    std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) { return all[2 * a + 1] < all[2 * b + 1]; });
    std::vector<int> theirs;
    for (const std::size_t m : members) theirs.push_back(world_ranks()[m]);
    const int at = static_cast<int>(std::find(members.begin(), members.end(), own()) - members.begin());
    return std::make_unique<SharedMemory>(fmt::format("{}/{}.{}", name(), label, *colour), at, std::move(theirs), world_, group);
  }

  void do_wait(const Call& call) override {
    if (world_->aborted) throw error(CommFault::aborted, call, world_->reason);
  }

  std::shared_ptr<World> world_;
  Segment& segment_;
  std::uint64_t round_ = 0;
  std::optional<int> offered_;
};

}  // namespace

std::string offer_shared_memory() {
  const int fd = ::memfd_create("moeplan-ranks", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) throw std::system_error(errno, std::generic_category(), "shared memory for the ranks");
  return fmt::format("/proc/{}/fd/{}", ::getpid(), fd);
}

std::unique_ptr<Communicator> shared_memory_communicator(int rank, int ranks, const std::string& offer, Duration limit) {
  if (ranks > kMostSharedRanks) throw InputError("ranks", fmt::format("{} processes; {} can share memory", ranks, kMostSharedRanks));
  const int fd = ::open(offer.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw InputError(offer, fmt::format("cannot be opened: {}", std::strerror(errno)), "start all ranks of the cpu backend on one machine");
  // On another machine some other process may have that number, and anything behind that descriptor.
  struct stat info {};
  std::error_code none;
  const bool ours = ::fstat(fd, &info) == 0 && info.st_size == static_cast<off_t>(sizeof(Shared)) &&
                    std::filesystem::read_symlink(offer, none).string().starts_with("/memfd:moeplan-ranks");
  if (!ours) {
    ::close(fd);
    throw InputError(offer, "is not the memory that rank 0 offered", "start all ranks of the cpu backend on one machine");
  }
  void* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  const int failed = errno;
  ::close(fd);
  if (at == MAP_FAILED) throw std::system_error(failed, std::generic_category(), "shared memory for the ranks");
  auto world = std::make_shared<World>();
  world->shared = static_cast<Shared*>(at);
  world->limit = limit;
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) all[static_cast<std::size_t>(r)] = r;
  const std::optional<int> offered = rank == 0 ? std::optional(std::stoi(offer.substr(offer.rfind('/') + 1))) : std::nullopt;
  return std::make_unique<SharedMemory>("world", rank, std::move(all), std::move(world), 0, offered);
}

}  // namespace moeplan
