#include "executor/comm/in_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "executor/comm/reduce.hpp"

namespace moeplan {
namespace {

struct Failure {
  CommFault fault;
  std::string reason;
};

/// What a rank brings to a collective. Pointers are read by the others between the two meetings of the call.
struct Post {
  CommKind kind = CommKind::barrier;
  DType dtype = DType::u8;
  Reduction reduction = Reduction::sum;
  std::int64_t count = 0;
  std::uint64_t sequence = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::span<const std::int64_t> send_counts{}, receive_counts{};
  std::optional<int> colour{};
  int key = 0;
};

/// A send that waits for its receive.
struct Letter {
  Transfer what;
  enum class State { waiting, copying, done } state = State::waiting;
};

/// The ranks of one communicator. `failed` ends every wait but that for a copy in progress.
struct Group {
  Group(std::string group_name, std::vector<int> group_ranks) : name(std::move(group_name)), ranks(std::move(group_ranks)), posts(ranks.size()), here(ranks.size()) {}
  std::string name;
  std::vector<int> ranks;             ///< world ranks
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Failure> failed;
  std::vector<Post> posts;
  std::vector<bool> here;             ///< has posted for the round in progress
  std::size_t arrived = 0;
  std::uint64_t round = 0;
  std::vector<bool> left;             ///< sized with the world: has issued its last call
  std::map<std::pair<int, int>, std::deque<Letter*>> letters;   ///< (from, to)
  std::map<int, std::shared_ptr<Group>> children;               ///< colour -> group, during a split
};

std::string post_text(const Post& p) { return call_text(p.kind, p.dtype, p.count, p.reduction); }

}  // namespace

struct InProcessWorld::State {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> groups;
  std::shared_ptr<Group> world;
  std::optional<Failure> failed;
  std::vector<bool> left;
  InProcessOptions options;

  void fail(const Failure& failure) {
    std::vector<std::shared_ptr<Group>> all;
    {
      const std::lock_guard lock(mutex);
      if (failed) return;
      failed = failure;
      for (const auto& weak : groups)
        if (auto group = weak.lock()) all.push_back(std::move(group));
    }
    for (const auto& group : all) {
      const std::lock_guard lock(group->mutex);
      if (!group->failed) group->failed = failure;
      group->changed.notify_all();
    }
  }

  std::shared_ptr<Group> add(std::string name, std::vector<int> ranks) {
    auto group = std::make_shared<Group>(std::move(name), std::move(ranks));
    const std::lock_guard lock(mutex);
    group->failed = failed;
    group->left = left;
    std::erase_if(groups, [](const auto& weak) { return weak.expired(); });
    groups.push_back(group);
    return group;
  }

  void leave(int rank) {
    std::vector<std::shared_ptr<Group>> all;
    {
      const std::lock_guard lock(mutex);
      left[static_cast<std::size_t>(rank)] = true;
      for (const auto& weak : groups)
        if (auto group = weak.lock()) all.push_back(std::move(group));
    }
    for (const auto& group : all) {
      const std::lock_guard lock(group->mutex);
      group->left[static_cast<std::size_t>(rank)] = true;
      group->changed.notify_all();
    }
  }
};

namespace {

class InProcess final : public Communicator {
 public:
  InProcess(std::shared_ptr<InProcessWorld::State> state, std::shared_ptr<Group> group, int own_rank)
      : Communicator(group->name, own_rank, group->ranks), state_(std::move(state)), group_(std::move(group)) {}

  void abort(const std::string& reason) noexcept override { state_->fail({CommFault::aborted, reason}); }

 private:
  void do_all_reduce(const Call& call, void* data) override {
    exchange(call, {.in = data, .out = data}, [&](const std::vector<Post>& posts) {
      const std::int64_t begin = call.count * rank() / size(), end = call.count * (rank() + 1) / size();
      std::vector<void*> outputs;
      for (const Post& p : posts) outputs.push_back(static_cast<std::byte*>(p.out) + begin * element_size(call.dtype));
      reduce_slice(inputs(posts), begin, end, call.dtype, call.reduction, outputs);
    });
  }

  void do_all_gather(const Call& call, const void* part, void* whole) override {
    exchange(call, {.in = part, .out = whole}, [&](const std::vector<Post>& posts) {
      const auto bytes = static_cast<std::size_t>(call.count * element_size(call.dtype));
      for (std::size_t r = 0; r < posts.size(); ++r) copy(static_cast<std::byte*>(whole) + r * bytes, posts[r].in, bytes);
    });
  }

  void do_reduce_scatter(const Call& call, const void* whole, void* part) override {
    exchange(call, {.in = whole, .out = part}, [&](const std::vector<Post>& posts) {
      void* outputs[] = {part};
      reduce_slice(inputs(posts), call.count * rank(), call.count * (rank() + 1), call.dtype, call.reduction, outputs);
    });
  }

  void do_all_to_all(const Call& call, const void* send_data, std::span<const std::int64_t> send_counts, void* receive_data,
                     std::span<const std::int64_t> receive_counts) override {
    const std::int64_t width = element_size(call.dtype);
    exchange(call, {.in = send_data, .out = receive_data, .send_counts = send_counts, .receive_counts = receive_counts},
             [&](const std::vector<Post>& posts) {
               auto* to = static_cast<std::byte*>(receive_data);
               for (std::size_t r = 0; r < posts.size(); ++r) {
                 std::int64_t before = 0;
                 for (int i = 0; i < rank(); ++i) before += posts[r].send_counts[static_cast<std::size_t>(i)];
                 const auto bytes = static_cast<std::size_t>(receive_counts[r] * width);
                 copy(to, static_cast<const std::byte*>(posts[r].in) + before * width, bytes);
                 to += bytes;
               }
             });
  }

  void do_gather_words(const Call& call, std::span<const std::int64_t> words, std::span<std::int64_t> all) override {
    exchange(call, {.in = words.data(), .out = all.data()}, [&](const std::vector<Post>& posts) {
      for (std::size_t r = 0; r < posts.size(); ++r) copy(all.data() + r * words.size(), posts[r].in, words.size_bytes());
    });
  }

  void do_barrier(const Call& call) override {
    exchange(call, {}, [](const std::vector<Post>&) {});
  }

  std::unique_ptr<Communicator> do_split(const Call& call, std::optional<int> colour, int key, const std::string& label) override {
    std::shared_ptr<Group> child;
    int child_rank = 0;
    exchange(call, {.colour = colour, .key = key}, [&](const std::vector<Post>& posts) {
      if (!colour) return;
      std::vector<int> members;   // ranks here, in the child's order
      for (int r = 0; r < size(); ++r)
        if (posts[static_cast<std::size_t>(r)].colour == colour) members.push_back(r);
      std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return posts[static_cast<std::size_t>(a)].key < posts[static_cast<std::size_t>(b)].key; });
      child_rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
      const std::lock_guard lock(group_->mutex);
      auto& slot = group_->children[*colour];
      if (!slot) {
        std::vector<int> ranks;
        for (const int m : members) ranks.push_back(group_->ranks[static_cast<std::size_t>(m)]);
        slot = state_->add(fmt::format("{}/{}.{}", name(), label, *colour), std::move(ranks));
      }
      child = slot;
    });
    if (!child) return nullptr;
    return std::make_unique<InProcess>(state_, child, child_rank);
  }

  void do_wait(const Call&) override {}

  void do_send_receive(const Call& call, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    std::deque<Letter> mine;
    std::unique_lock lock(group_->mutex);
    if (group_->failed) throw error(group_->failed->fault, call, group_->failed->reason);
    for (const Transfer& s : sends) {
      mine.push_back({s});
      group_->letters[{rank(), s.peer}].push_back(&mine.back());
    }
    group_->changed.notify_all();
    try {
      for (const Transfer& r : receives) take(call, r, lock);
      for (const Letter& letter : mine)
        sleep(call, letter.what.peer, lock, [&] { return letter.state == Letter::State::done; });
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      for (auto& letter : mine) {   // nobody may read these buffers once this rank has left
        group_->changed.wait(lock, [&] { return letter.state != Letter::State::copying; });
        for (auto& [way, queue] : group_->letters) std::erase(queue, &letter);
      }
      throw;
    }
  }

  void take(const Call& call, const Transfer& wanted, std::unique_lock<std::mutex>& lock) {
    auto& queue = group_->letters[{wanted.peer, rank()}];
    sleep(call, wanted.peer, lock, [&] { return !queue.empty(); });
    Letter& letter = *queue.front();
    if (letter.what.count != wanted.count || letter.what.dtype != wanted.dtype)
      fail(lock, call, {CommFault::mismatch, fmt::format("rank {} sends {} x {}, rank {} receives {} x {}", world(wanted.peer), name_of(letter.what.dtype),
                                                         letter.what.count, world(rank()), name_of(wanted.dtype), wanted.count)});
    queue.pop_front();
    letter.state = Letter::State::copying;
    lock.unlock();
    copy(wanted.data, letter.what.data, static_cast<std::size_t>(wanted.count * element_size(wanted.dtype)));
    lock.lock();
    letter.state = Letter::State::done;
    group_->changed.notify_all();
  }

  /// Waits for `ready` about `peer`; leaves on failure, when the peer has ended, and at the limit.
  template <class Ready>
  void sleep(const Call& call, int peer, std::unique_lock<std::mutex>& lock, Ready ready) {
    const auto gone = [&] { return group_->left[static_cast<std::size_t>(world(peer))]; };
    const auto awake = [&] { return ready() || group_->failed || gone(); };
    const bool in_time = wait_for(lock, awake);
    if (ready()) return;
    if (group_->failed) throw error(group_->failed->fault, call, group_->failed->reason);
    if (gone()) fail(lock, call, {CommFault::peer_lost, fmt::format("rank {} has ended without the matching call", world(peer))});
    if (!in_time) fail(lock, call, {CommFault::timeout, fmt::format("rank {} did not come within {} ms", world(peer), state_->options.limit.count())});
  }

  template <class Awake>
  bool wait_for(std::unique_lock<std::mutex>& lock, Awake awake) {
    if (state_->options.limit.count() > 0) return group_->changed.wait_for(lock, state_->options.limit, awake);
    group_->changed.wait(lock, awake);
    return true;
  }

  /// Posts, waits for all, does `part` with everybody's posts, and waits until all have done theirs.
  void exchange(const Call& call, Post post, const std::function<void(const std::vector<Post>&)>& part) {
    post.kind = call.kind;
    post.dtype = call.dtype;
    post.reduction = call.reduction;
    post.count = call.count;
    post.sequence = call.sequence;
    std::unique_lock lock(group_->mutex);
    if (group_->failed) throw error(group_->failed->fault, call, group_->failed->reason);
    group_->posts[static_cast<std::size_t>(rank())] = post;
    group_->here[static_cast<std::size_t>(rank())] = true;
    const std::uint64_t round = group_->round;
    if (++group_->arrived == group_->ranks.size()) {
      compare(lock, call);
      next_round();
    } else {
      const auto missing_left = [&] { return any_missing([&](int w) { return bool(group_->left[static_cast<std::size_t>(w)]); }); };
      const bool in_time = wait_for(lock, [&] { return group_->round != round || group_->failed || !missing_left().empty(); });
      if (group_->round == round) {
        if (group_->failed) throw error(group_->failed->fault, call, group_->failed->reason);
        if (const auto gone = missing_left(); !gone.empty())
          fail(lock, call, {CommFault::peer_lost, fmt::format("{} ended without it", gone)});
        if (!in_time) {
          const auto absent = any_missing([](int) { return true; });
          fail(lock, call, {CommFault::timeout, fmt::format("{} did not come within {} ms", absent, state_->options.limit.count())});
        }
      }
    }
    // From here to the second meeting the others read this rank's buffers: it leaves only with them. They cannot fail to come.
    lock.unlock();
    part(group_->posts);
    lock.lock();
    const std::uint64_t second = group_->round;
    if (++group_->arrived == group_->ranks.size()) {
      group_->children.clear();
      next_round();
    } else {
      group_->changed.wait(lock, [&] { return group_->round != second; });
    }
  }

  void next_round() {
    group_->arrived = 0;
    std::fill(group_->here.begin(), group_->here.end(), false);
    ++group_->round;
    group_->changed.notify_all();
  }

  /// "rank 3" or "ranks 3, 5", of those that have not arrived and satisfy `which`; empty if none.
  template <class Which>
  std::string any_missing(Which which) const {
    std::string list;
    int n = 0;
    for (std::size_t r = 0; r < group_->here.size(); ++r)
      if (!group_->here[r] && which(group_->ranks[r])) list += (n++ ? ", " : "") + std::to_string(group_->ranks[r]);
    return n == 0 ? list : (n == 1 ? "rank " : "ranks ") + list;
  }

  /// The debug check: all posts of the round describe the same call.
  void compare(std::unique_lock<std::mutex>& lock, const Call& call) {
    const auto& posts = group_->posts;
    for (std::size_t r = 1; r < posts.size(); ++r) {
      const Post &a = posts[0], &b = posts[r];
      if (a.kind != b.kind || a.dtype != b.dtype || a.reduction != b.reduction || a.count != b.count || a.sequence != b.sequence)
        fail(lock, call, {CommFault::mismatch, fmt::format("rank {} issued {} as #{}, rank {} issued {} as #{}", world(0), post_text(a), a.sequence,
                                                           world(static_cast<int>(r)), post_text(b), b.sequence)});
    }
    if (call.kind != CommKind::all_to_all) return;
    for (std::size_t from = 0; from < posts.size(); ++from)
      for (std::size_t to = 0; to < posts.size(); ++to)
        if (posts[from].send_counts[to] != posts[to].receive_counts[from])
          fail(lock, call, {CommFault::mismatch, fmt::format("rank {} sends {} elements to rank {}, which expects {}", world(static_cast<int>(from)),
                                                             posts[from].send_counts[to], world(static_cast<int>(to)), posts[to].receive_counts[from])});
  }

  /// Under the group's lock, so that the round cannot complete behind it; then tells the other groups.
  [[noreturn]] void fail(std::unique_lock<std::mutex>& lock, const Call& call, const Failure& failure) {
    if (!group_->failed) group_->failed = failure;
    const Failure first = *group_->failed;
    group_->changed.notify_all();
    lock.unlock();
    state_->fail(first);
    throw error(first.fault, call, first.reason);
  }

  int world(int r) const { return group_->ranks[static_cast<std::size_t>(r)]; }

  static std::vector<const void*> inputs(const std::vector<Post>& posts) {
    std::vector<const void*> in;
    for (const Post& p : posts) in.push_back(p.in);
    return in;
  }
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
  }

  std::shared_ptr<InProcessWorld::State> state_;
  std::shared_ptr<Group> group_;
};

}  // namespace

InProcessWorld::InProcessWorld(int ranks, InProcessOptions options) : state_(std::make_shared<State>()) {
  state_->options = options;
  state_->left.resize(static_cast<std::size_t>(ranks));
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) all[static_cast<std::size_t>(r)] = r;
  state_->world = state_->add("world", std::move(all));
}

InProcessWorld::~InProcessWorld() = default;

std::unique_ptr<Communicator> InProcessWorld::communicator(int rank) { return std::make_unique<InProcess>(state_, state_->world, rank); }
void InProcessWorld::abort(const std::string& reason) noexcept { state_->fail({CommFault::aborted, reason}); }
void InProcessWorld::leave(int rank) noexcept { state_->leave(rank); }

void run_ranks(int ranks, const std::function<void(Communicator&)>& body, InProcessOptions options) {
  InProcessWorld world(ranks, options);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      std::string reason;
      try {
        const auto communicator = world.communicator(r);
        body(*communicator);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        reason = e.what();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        reason = "an unknown exception";
      }
      if (!reason.empty()) world.abort(fmt::format("rank {} failed: {}", r, reason));
      world.leave(r);
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace moeplan
