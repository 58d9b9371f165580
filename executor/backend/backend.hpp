#pragma once
/// Who computes. A backend owns memory, performs the operator calls of a program on it, and moves numbers in and out; where a buffer lies
/// and in which order calls run is decided above it. `cpu` computes with the references, `null` walks and computes nothing. A device
/// backend queues the same calls on its stream: nothing here waits but `read` and `wait`.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {

/// A tensor in a backend's memory. A view takes some columns of every row of its base (`split`); without `columns` it is contiguous.
struct TensorView {
  std::byte* data = nullptr;                             ///< first byte of the base; null: absent
  DType dtype = DType::f32;
  Shape shape{};                                         ///< as the call sees it
  const std::vector<std::int32_t>* columns = nullptr;    ///< columns of a row of the base, in the view's order
  std::int64_t base_columns = 0;                         ///< of a row of the base, where `columns` is set
  bool arranged = false;                                 ///< a stored weight in the order that the backend's kernels read (`WeightForm`)
  [[nodiscard]] bool present() const { return data != nullptr; }
};

/// What a call is told besides its operands: the routing of its layer and micro-batch, and the policies on it.
struct CallContext {
  std::span<const std::int64_t> rows_of_expert{};   ///< of each local expert, after drops, where the host knows them
  TensorView expert_rows{};                         ///< the same in the backend's memory (i32), where it does not
  TensorView workspace{};                           ///< `Backend::workspace` bytes (u8), with `wants_dense` also the copies'; absent or too small: the backend finds its own
  std::int64_t capacity = 0;                        ///< most rows of one expert; 0: no limit
  double auxiliary = 0;                             ///< weight of the router's balancing loss
};

/// How a frozen weight lies in memory.
struct WeightForm {
  DType dtype = DType::bf16;
  bool arranged = false;   ///< stored, but its bits moved to where the kernels of the calls that read it want them
  bool operator==(const WeightForm&) const = default;
};

/// `count` rows from row `from` on.
struct RowRun {
  std::int64_t from = 0, count = 0;
  bool operator==(const RowRun&) const = default;
};

/// Memory ran out although the plan foresaw enough: `where` is the buffer, the run adds the step.
class OutOfMemory : public InputError {
 public:
  using InputError::InputError;
};

/// Two directions at once take two lanes: what a plan calls the copy lane, and the way back beside it.
enum class CopyLane : std::uint8_t { main, back };

/// When a copy ran, in seconds since the first stamp.
struct CopySpan {
  double begin = 0, end = 0;
};

class Backend {
 public:
  /// Memory of the backend; freed with its last owner.
  using Memory = std::shared_ptr<std::byte>;

  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// `told` hears of each piece of work that the host does or waits for, before it begins, with what it computes; empty: nobody any more.
  void on_work(std::function<void(Flops)> told) { told_ = std::move(told); }

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Why it cannot do this call, in one sentence; empty if it can. What it cannot is refused by name before a run starts.
  [[nodiscard]] virtual std::string refusal(const Op& op) const = 0;
  /// In which type it holds a tensor that the plan wants in `planned`.
  [[nodiscard]] virtual DType held(DType planned) const = 0;
  /// The same of a frozen weight of this call, which is kept quantised where the backend computes with it so.
  [[nodiscard]] virtual WeightForm held_weight(const Op&, DType planned) const { return {held(planned)}; }
  /// Zeroed memory, aligned to 64 bytes. Throws OutOfMemory naming `what` and the bytes where there is none.
  [[nodiscard]] virtual Memory allocate(Bytes bytes, const std::string& what) = 0;
  /// The same in host memory, which copies of bytes reach at the link's rate (page-locked for a device). Views of it may be written, read and
  /// given to calls, but slowly.
  [[nodiscard]] virtual Memory allocate_host(Bytes bytes, const std::string& what) { return allocate(bytes, what); }
  /// Converts between floats here and a tensor there.
  virtual void write(const TensorView& to, std::span<const float> from) = 0;
  virtual void read(const TensorView& from, std::span<float> to) = 0;
  /// Bytes of a stored tensor in the order of its format (executor/backend/stored.hpp), whatever that of the memory.
  virtual void write_stored(const TensorView& to, std::span<const std::byte> from) = 0;
  /// to = 0.
  virtual void clear(const TensorView& to) = 0;
  /// Nearly normal numbers of mean 0: element i is `nearly_normal(state, i)` times deviation, the same on every backend.
  virtual void fill_normal(const TensorView& to, std::uint64_t state, float deviation) = 0;
  /// to += scale * from, elementwise, in float.
  virtual void add(const TensorView& from, const TensorView& to, float scale) = 0;
  /// to = from, with conversion.
  virtual void copy(const TensorView& from, const TensorView& to) = 0;
  /// Rows that lie together on one side and in runs on the other: `together`'s rows, in their order, are those of `runs` in `apart`, or become them
  /// (`gather`) from there. Both contiguous, of one type and width.
  virtual void copy_rows(const TensorView& together, const TensorView& apart, std::span<const RowRun> runs, bool gather);
  /// Performs a call. `operands` and `gradients` are parallel to the contract's operands; what is absent is not needed or not wanted.
  /// Rows of `permute` and `combine` may be fewer than the contract's, where no copy points beyond them.
  virtual void call(const OpCall& call, std::span<const TensorView> operands, std::span<const TensorView> gradients, const CallContext& context) = 0;
  virtual void wait() = 0;

  /// Stands behind a copy and those before it in its lane.
  using CopyPoint = std::shared_ptr<void>;
  /// Copies bytes between memory and host memory beside the calls: after what is queued now and after the lane's copies before; what is queued
  /// later waits for it by `await` only. Here, without a queue, it is done when it is awaited: no sooner than must be.
  virtual CopyPoint copy_beside(const std::byte* from, std::byte* to, Bytes bytes, CopyLane lane = CopyLane::main);
  /// What is queued from here on comes after it.
  virtual void await(const CopyPoint& point);
  /// The queue of the main copy lane, as `queue`.
  [[nodiscard]] virtual void* copy_queue() { return nullptr; }
  /// Whether copies note their times from now on; those noted, in the order in which they were made, forgotten. Before `stamps`.
  virtual void time_copies(bool on) { times_copies_ = on; }
  [[nodiscard]] virtual std::vector<CopySpan> copy_times();

  /// Scratch of a call besides its operands: the contract's, unless the backend's kernels take another amount.
  [[nodiscard]] virtual Bytes workspace(const OpCall& call) const { return moeplan::workspace(call.op, call.pass, call.wants); }
  /// Whether calls work on dense tensors of the contract's types, so that others pass through the workspace too (`dense_copies`, sim/program).
  [[nodiscard]] virtual bool wants_dense() const { return false; }
  /// Memory (u8) that copies may use until the next call of it: of views of columns. Absent: the backend finds its own.
  virtual void lend(const TensorView&) {}
  /// to[c] = sum over the rows r of from[r, c] / (sum of row r); rows without a positive sum count nothing. Both f32, contiguous.
  virtual void sum_shares(const TensorView& from, const TensorView& to);
  /// Work that can be queued again at once, over the same memory and the numbers that lie there then (a CUDA graph). `work` is not performed.
  /// It must have been performed before and must not wait or read. Empty where the backend cannot.
  using Recording = std::function<void()>;
  [[nodiscard]] virtual Recording record(const std::function<void()>&) { return {}; }
  /// Notes the time at which what is queued so far is done; `stamps` waits, returns seconds since the first and forgets them. Inside a
  /// recording they are noted when it is performed.
  virtual void stamp();
  [[nodiscard]] virtual std::vector<double> stamps();
  /// What the driver says is taken of the device, by everything; zero where nobody says.
  [[nodiscard]] virtual Bytes device_memory() const { return {}; }
  /// Held for calls beside what was allocated: scratch that no workspace gave, dense copies of views, the libraries' own.
  [[nodiscard]] virtual Bytes beside() const { return {}; }
  /// The queue of a device (a cudaStream_t), for what must come before or after what it holds; null where calls are done when they return.
  [[nodiscard]] virtual void* queue() { return nullptr; }
  /// How long what `work` queues takes, alone: by the device's clock where it has one, else by the host's.
  [[nodiscard]] virtual Seconds time(const std::function<void()>& work);

 protected:
  void working(Flops work = {}) const {
    if (told_) told_(work);
  }

 private:
  std::function<void(Flops)> told_;
  struct LaneCopy {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    CopySpan span{};
    bool timed = false, done = false;
  };
  std::array<std::vector<std::shared_ptr<LaneCopy>>, 2> waiting_;   ///< by lane
  std::vector<std::shared_ptr<LaneCopy>> timed_;
  bool times_copies_ = false;
  std::vector<double> stamps_;
};

/// Integers to be scaled by 1 / kNearlyNormalDeviation: the sum of the four 16-bit parts of splitmix64's i-th number (Steele et al. 2014) less its
/// mean. Four uniform numbers (Irwin-Hall) are normal but for the tails, which end at 3.46 deviations.
inline constexpr float kNearlyNormalDeviation = 37837.23f;   ///< sqrt(4 (2^32 - 1) / 12)
[[nodiscard]] constexpr std::int32_t nearly_normal(std::uint64_t state, std::uint64_t i) {
  std::uint64_t x = state + (i + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  return static_cast<std::int32_t>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) - 2 * 65535;
}

/// `as_planned`: bf16 buffers hold bf16, so memory is the plan's and every stored result is rounded; `wide`: bf16 and f16 are held as f32,
/// for comparisons with float implementations. Arithmetic is float in both.
enum class CpuStorage : std::uint8_t { as_planned, wide };
[[nodiscard]] std::unique_ptr<Backend> cpu_backend(CpuStorage storage);
[[nodiscard]] std::unique_ptr<Backend> null_backend();

}  // namespace moeplan
