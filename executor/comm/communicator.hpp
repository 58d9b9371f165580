#pragma once
/// How ranks exchange data: one interface over threads of one process (`in_process`) and over NCCL (`nccl`).
///
/// A communicator belongs to one rank and one thread. Every rank of a group issues the same collectives in the same order
/// with the same sizes, whatever the routing; only the counts of `all_to_all` may differ. Calls may return before the data
/// has arrived (NCCL enqueues on a stream): `wait()` returns when everything issued so far is done. Buffers stay untouched
/// until then. In place is allowed where NCCL allows it: all_reduce; all_gather with `part` = `whole` + rank x count;
/// reduce_scatter likewise.
///
/// Every call is counted (calls, payload, bytes sent), so that a prediction of communication volume can be compared exactly.

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "executor/comm/progress.hpp"

namespace moeplan {

enum class CommKind : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, send, receive, send_receive, barrier, split, words, wait, open };
template <>
struct EnumNames<CommKind> {
  static constexpr std::array names{
      std::pair{CommKind::all_reduce, std::string_view("all_reduce")}, std::pair{CommKind::all_gather, std::string_view("all_gather")},
      std::pair{CommKind::reduce_scatter, std::string_view("reduce_scatter")}, std::pair{CommKind::all_to_all, std::string_view("all_to_all")},
      std::pair{CommKind::send, std::string_view("send")}, std::pair{CommKind::receive, std::string_view("receive")},
      std::pair{CommKind::send_receive, std::string_view("send_receive")}, std::pair{CommKind::barrier, std::string_view("barrier")},
      std::pair{CommKind::split, std::string_view("split")}, std::pair{CommKind::words, std::string_view("gather_words")},
      std::pair{CommKind::wait, std::string_view("wait")}, std::pair{CommKind::open, std::string_view("open")}};
};

enum class Reduction : std::uint8_t { sum, max, min };

/// What went wrong with a communication call.
enum class CommFault : std::uint8_t {
  bad_call,   ///< this rank's arguments: element type, count, peer
  mismatch,   ///< two ranks issued different calls; the message names both
  timeout,    ///< the others did not come within the limit; the message names those missing
  peer_lost,  ///< a rank ended or died
  aborted,    ///< somebody else failed, this rank was told to leave
  library,    ///< NCCL or CUDA returned an error
};

/// One line that names communicator, rank, operation with its number, and the peer where there is one. Ranks are world ranks.
class CommError : public std::runtime_error {
 public:
  struct Where {
    int rank = 0;
    std::string communicator;
    std::string operation;
    std::uint64_t sequence = 0;
    std::optional<int> peer;
  };
  CommError(CommFault fault, Where where, const std::string& reason);
  [[nodiscard]] CommFault fault() const { return fault_; }
  [[nodiscard]] const Where& where() const { return where_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  CommFault fault_;
  Where where_;
  std::string reason_;
};

/// `payload` follows nccl-tests: the full size (all-gather output, reduce-scatter input, all-reduce buffer); for all_to_all all
/// rows of the send buffer, those for the own rank included. `sent` is what a ring (all_reduce 2 (n-1)/n, rounded down; others
/// (n-1)/n) or the pairwise exchange must put on the wire for this rank: nothing to itself.
struct CommCounter {
  std::int64_t calls = 0, payload = 0, sent = 0;
  bool operator==(const CommCounter&) const = default;
};
using CommCounters = std::array<CommCounter, EnumNames<CommKind>::names.size()>;

/// Bytes that one rank of `ranks` sends for a collective of `payload` bytes (not for all_to_all, whose counts decide).
[[nodiscard]] std::int64_t ring_sent_bytes(CommKind kind, std::int64_t payload, int ranks);

/// Element types that travel: f32, bf16, i32, i64, u8. Others (fp8, packed formats) travel as u8.
[[nodiscard]] bool is_transferable(DType type);
[[nodiscard]] std::int64_t element_size(DType type);

/// One part of a grouped `send_receive`.
struct Transfer {
  void* data = nullptr;      ///< only read when it is a send
  std::int64_t count = 0;
  DType dtype = DType::u8;
  int peer = 0;              ///< rank in this communicator
};

/// Memory that a transport knows beforehand (`register_memory`).
struct Registration {
  std::shared_ptr<void> handle;   ///< while it lives; keeps the memory. Null: not registered
  std::string refused;            ///< why, where there is something to register with
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(world_ranks_.size()); }
  /// The same on all ranks of a group, different for every group: "world", "world/ep.0".
  [[nodiscard]] const std::string& name() const { return name_; }
  /// World rank of each rank of this communicator.
  [[nodiscard]] const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// The part of opening a world that all ranks make together; its maker has made this rank's own. First of all calls, where a transport says so.
  void connect();
  /// Reduces elementwise over the ranks, in place. `in_process` adds in rank order 0, 1, ... in f32 (integers wrap) and rounds
  /// once; NCCL's order is its own but the same on every rank.
  void all_reduce(void* data, std::int64_t count, DType dtype, Reduction reduction = Reduction::sum);
  /// `whole` [size x count] = the `part` [count] of each rank, in rank order.
  void all_gather(const void* part, void* whole, std::int64_t count, DType dtype);
  /// `part` [count] = slice `rank` of the reduction of `whole` [size x count].
  void reduce_scatter(const void* whole, void* part, std::int64_t count, DType dtype, Reduction reduction = Reduction::sum);
  /// Rows for rank r lie at the sum of the counts before r, in both buffers. Zero counts are fine; every rank still calls.
  void all_to_all(const void* send, std::span<const std::int64_t> send_counts, void* receive, std::span<const std::int64_t> receive_counts,
                  DType dtype);
  /// Blocks (the stream, for NCCL) until the peer receives.
  void send(const void* data, std::int64_t count, DType dtype, int peer);
  void receive(void* data, std::int64_t count, DType dtype, int peer);
  /// All of them as one call that cannot deadlock on its own order; several to one peer match in list order.
  void send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives);
  void barrier();
  /// Ranks of one `colour` form a communicator, ordered by (key, rank). A rank without colour takes part in the call and gets none.
  /// `label` names the result: parent/label.colour.
  [[nodiscard]] std::unique_ptr<Communicator> split(std::optional<int> colour, int key, const std::string& label);
  /// Small host-side exchange: each rank's words, in rank order; for agreements (newest step, non-finite flags, dispatch counts).
  /// The same number of words on all ranks. Complete on return.
  [[nodiscard]] std::vector<std::int64_t> gather_words(std::span<const std::int64_t> words);
  /// Returns when everything issued on this communicator is done.
  void wait();
  /// What is issued until `end_together` goes as one launch (NCCL), and is complete for the caller after it. Not nested.
  virtual void begin_together() {}
  virtual void end_together() {}
  /// Calls from here on go to a second queue of the world's, beside those of the communicators that stay on the first. Safe only where
  /// every rank issues the calls of both queues in one order. Nothing where nothing is queued.
  virtual void move_beside() {}
  /// What is issued from here on comes after what `queue` (a cudaStream_t) has now. False where nothing is queued: the caller waits itself.
  [[nodiscard]] virtual bool follow(void* queue);
  /// A point behind what is issued until now; null where nothing is queued. `timed`: `seconds_between` can be asked for it.
  [[nodiscard]] virtual std::shared_ptr<void> mark(bool /*timed*/ = false) { return nullptr; }
  /// Of two timed points that the queue has passed.
  [[nodiscard]] virtual double seconds_between(const std::shared_ptr<void>& from, const std::shared_ptr<void>& to);
  /// What `queue` gets from here on comes after `point`.
  virtual void lead(void* queue, const std::shared_ptr<void>& point);
  /// Compares what all ranks issued since the start. Throws `mismatch` naming the first call that differs and two ranks that differ.
  void check_order();
  /// Kinds, types, element counts and order of everything issued so far, as one number; counts of all_to_all are not in it.
  [[nodiscard]] std::uint64_t order_hash() const { return order_.hash; }
  /// Zeroed memory as a transport wants what it registers; null where any is as good, or where there is none: the caller takes its own.
  [[nodiscard]] virtual std::shared_ptr<std::byte> shareable(std::int64_t /*bytes*/) { return nullptr; }
  /// Makes memory known to the transport, so that calls move data from and to it without a copy of their own. All ranks of the group call it, each with
  /// its memory: it is registered on all or on none. Let go of with the handle, before or after the communicator ends. Where there is nothing to register
  /// with, both members are empty.
  [[nodiscard]] Registration register_memory(const std::shared_ptr<void>& memory, std::int64_t bytes);
  /// Every rank of every communicator of the same world leaves its call with `aborted`. Any thread may call it.
  virtual void abort(const std::string& reason) noexcept = 0;

  [[nodiscard]] const CommCounters& counters() const { return counters_; }
  [[nodiscard]] const CommCounter& counter(CommKind kind) const { return counters_[static_cast<std::size_t>(kind)]; }
  void reset_counters() { counters_ = {}; }
  /// Reports every call to `progress` (which must outlive this); the communicators split off inherit it.
  void report_to(Progress* progress) { progress_ = progress; }

 protected:
  struct Call {
    CommKind kind = CommKind::barrier;
    DType dtype = DType::u8;
    Reduction reduction = Reduction::sum;
    std::int64_t count = 0;          ///< elements per rank; for all_to_all not compared
    std::uint64_t sequence = 0;      ///< collectives count from 1 on each communicator; send and receive count apart
    std::optional<int> peer{};       ///< rank in this communicator
  };
  Communicator(std::string name, int rank, std::vector<int> world_ranks)
      : name_(std::move(name)), rank_(rank), world_ranks_(std::move(world_ranks)) {}

  /// Whether somebody looks at the limits of calls from outside (a watchdog, the lifeline) and ends those that wait in vain: the transport's own
  /// limit would end a wait for a rank that goes on with its work, too.
  [[nodiscard]] bool watched() const { return progress_ != nullptr; }
  [[nodiscard]] Progress* progress() const { return progress_; }
  /// To be called in each turn of a wait.
  void turn() const {
    if (progress_) progress_->turn();
  }

  /// An error of this rank in `call`.
  [[nodiscard]] CommError error(CommFault fault, const Call& call, const std::string& reason) const;

  virtual void do_connect(const Call& /*call*/) {}
  virtual void do_all_reduce(const Call& call, void* data) = 0;
  virtual void do_all_gather(const Call& call, const void* part, void* whole) = 0;
  virtual void do_reduce_scatter(const Call& call, const void* whole, void* part) = 0;
  virtual void do_all_to_all(const Call& call, const void* send, std::span<const std::int64_t> send_counts, void* receive,
                             std::span<const std::int64_t> receive_counts) = 0;
  virtual void do_send_receive(const Call& call, std::span<const Transfer> sends, std::span<const Transfer> receives) = 0;
  virtual void do_barrier(const Call& call) = 0;
  virtual std::unique_ptr<Communicator> do_split(const Call& call, std::optional<int> colour, int key, const std::string& label) = 0;
  virtual void do_gather_words(const Call& call, std::span<const std::int64_t> words, std::span<std::int64_t> all) = 0;
  virtual void do_wait(const Call& call) = 0;
  /// Of this rank alone; nothing: there is nothing to register with, on any rank.
  [[nodiscard]] virtual std::optional<Registration> do_register(const std::shared_ptr<void>& /*memory*/, std::int64_t /*bytes*/) { return std::nullopt; }

 private:
  /// What `check_order` compares: the calls since the start as a running hash, the latest also one by one.
  struct Order {
    static constexpr std::size_t kept = 32;
    std::array<std::int64_t, kept> recent{};
    std::uint64_t hash = 14695981039346656037ull;
  };
  Call start(CommKind kind, DType dtype, std::int64_t count, Reduction reduction = Reduction::sum);
  Call start_transfer(CommKind kind, std::span<const Transfer> sends, std::span<const Transfer> receives);
  void perform(const Call& call, std::vector<int> members, const std::function<void()>& body);
  void count(CommKind kind, std::int64_t payload, std::int64_t sent);

  std::string name_;
  int rank_;
  std::vector<int> world_ranks_;
  std::uint64_t collectives_ = 0, transfers_ = 0;
  CommCounters counters_{};
  Order order_;
  Progress* progress_ = nullptr;
};

/// "all_reduce f32 x 8, sum" as error messages show a call.
[[nodiscard]] std::string call_text(CommKind kind, DType dtype, std::int64_t count, Reduction reduction);

}  // namespace moeplan
