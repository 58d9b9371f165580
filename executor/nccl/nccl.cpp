#include "executor/nccl/nccl.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "executor/nccl/library.hpp"
#include "executor/nccl/memory.hpp"
#include "executor/nccl/world.hpp"

namespace moeplan {
namespace {

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    default: return ncclUint8;
  }
}

ncclRedOp_t nccl_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::max: return ncclMax;
    case Reduction::min: return ncclMin;
    default: return ncclSum;
  }
}

void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(result)));
}

class Nccl final : public Communicator {
 public:
  /// Takes over a handle that is in progress until `settle`. The destructor never runs if this throws, so it cleans up itself.
  Nccl(std::string name, int own_rank, std::vector<int> ranks, std::shared_ptr<NcclWorld> world, ncclComm_t comm, const NcclOptions& options)
      : Communicator(std::move(name), own_rank, std::move(ranks)), world_(std::move(world)), comm_(comm), options_(options) {
    {
      const std::lock_guard lock(world_->mutex);
      world_->live.push_back(comm_);
    }
    if (const cudaError_t result = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming); result != cudaSuccess) {
      abort("left without the others");
      release();
      check_cuda(result, "cudaEventCreate");
    }
  }

  ~Nccl() override { release(); }

  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

  void use_stream(void* stream) { options_.stream = stream; }
  void move_beside() override {
    if (!world_->beside) check_cuda(cudaStreamCreateWithFlags(&world_->beside, cudaStreamNonBlocking), "cudaStreamCreate");
    options_.stream = world_->beside;
  }

  void begin_together() override {
    together_ = true;
    nccl().group_start();
  }
  void end_together() override {
    together_ = false;
    const Call call{.kind = CommKind::wait};
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(world_->mutex);
      leave_if_aborted(call);
      result = nccl().group_end();
    }
    if (!accepted(result)) give_up(call, CommFault::library, message(result));
    settle(call);
  }

  bool follow(void* queue) override {
    if (!queue) return false;
    const Call call{.kind = CommKind::wait};
    if (queue == options_.stream) return true;
    cuda(call, cudaEventRecord(event_, static_cast<cudaStream_t>(queue)), "cudaEventRecord");
    cuda(call, cudaStreamWaitEvent(stream(), event_, 0), "cudaStreamWaitEvent");
    return true;
  }
  std::shared_ptr<void> mark(bool timed) override {
    const Call call{.kind = CommKind::wait};
    cudaEvent_t event = nullptr;
    cuda(call, cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
    std::shared_ptr<void> point(event, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
    cuda(call, cudaEventRecord(event, stream()), "cudaEventRecord");
    return point;
  }
  double seconds_between(const std::shared_ptr<void>& from, const std::shared_ptr<void>& to) override {
    float milliseconds = 0;
    cuda({.kind = CommKind::wait}, cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(from.get()), static_cast<cudaEvent_t>(to.get())), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  void lead(void* queue, const std::shared_ptr<void>& point) override {
    cuda({.kind = CommKind::wait}, cudaStreamWaitEvent(static_cast<cudaStream_t>(queue), static_cast<cudaEvent_t>(point.get()), 0), "cudaStreamWaitEvent");
  }

  std::shared_ptr<std::byte> shareable(std::int64_t bytes) override { return shareable_memory(bytes); }

 private:
  void do_connect(const Call& call) override {
    settle(call);
    const std::lock_guard lock(world_->mutex);
    world_->connected = true;
  }
  void do_all_reduce(const Call& call, void* data) override {
    issue(call, [&] { return nccl().all_reduce(data, data, count(call), nccl_type(call.dtype), nccl_reduction(call.reduction), comm_, stream()); });
  }
  void do_all_gather(const Call& call, const void* part, void* whole) override {
    issue(call, [&] { return nccl().all_gather(part, whole, count(call), nccl_type(call.dtype), comm_, stream()); });
  }
  void do_reduce_scatter(const Call& call, const void* whole, void* part) override {
    issue(call, [&] { return nccl().reduce_scatter(whole, part, count(call), nccl_type(call.dtype), nccl_reduction(call.reduction), comm_, stream()); });
  }

  void do_all_to_all(const Call& call, const void* send_data, std::span<const std::int64_t> send_counts, void* receive_data,
                     std::span<const std::int64_t> receive_counts) override {
    const auto width = static_cast<std::size_t>(element_size(call.dtype));
    const ncclDataType_t type = nccl_type(call.dtype);
    issue(call, [&] {
      const auto* from = static_cast<const std::byte*>(send_data);
      auto* to = static_cast<std::byte*>(receive_data);
      for (int r = 0; r < size(); ++r) {
        const auto s = static_cast<std::size_t>(send_counts[static_cast<std::size_t>(r)]), d = static_cast<std::size_t>(receive_counts[static_cast<std::size_t>(r)]);
        ncclResult_t result = ncclSuccess;
        if (r == rank()) {
          if (s > 0 && cudaMemcpyAsync(to, from, s * width, cudaMemcpyDeviceToDevice, stream()) != cudaSuccess) return ncclUnhandledCudaError;
        } else {
          if (s > 0) result = nccl().send(from, s, type, r, comm_, stream());
          if (accepted(result) && d > 0) result = nccl().receive(to, d, type, r, comm_, stream());
        }
        if (!accepted(result)) return result;
        from += s * width;
        to += d * width;
      }
      return ncclSuccess;
    });
  }

  void do_send_receive(const Call& call, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
    issue(call, [&] {
      for (const Transfer& t : sends)
        if (const auto r = nccl().send(t.data, static_cast<std::size_t>(t.count), nccl_type(t.dtype), t.peer, comm_, stream()); !accepted(r)) return r;
      for (const Transfer& t : receives)
        if (const auto r = nccl().receive(t.data, static_cast<std::size_t>(t.count), nccl_type(t.dtype), t.peer, comm_, stream()); !accepted(r)) return r;
      return ncclSuccess;
    });
  }

  void do_barrier(const Call& call) override {
    const std::int64_t word = 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()));
    do_gather_words(call, {&word, 1}, all);
  }

  void do_gather_words(const Call& call, std::span<const std::int64_t> words, std::span<std::int64_t> all) override {
    if (words.empty()) return;
    const std::size_t need = all.size_bytes() + words.size_bytes();
    if (scratch_bytes_ < need) {
      if (scratch_) cuda(call, cudaFree(scratch_), "cudaFree");
      scratch_ = nullptr;
      scratch_bytes_ = 0;
      cuda(call, cudaMalloc(&scratch_, need), "cudaMalloc");
      scratch_bytes_ = need;
    }
    auto* whole = static_cast<std::byte*>(scratch_);
    std::byte* part = whole + all.size_bytes();
    cuda(call, cudaMemcpyAsync(part, words.data(), words.size_bytes(), cudaMemcpyHostToDevice, stream()), "copy to device");
    issue(call, [&] { return nccl().all_gather(part, whole, words.size(), ncclInt64, comm_, stream()); });
    do_wait(call);  // before the copy back: a copy to pageable memory waits for the stream without a limit
    cuda(call, cudaMemcpyAsync(all.data(), whole, all.size_bytes(), cudaMemcpyDeviceToHost, stream()), "copy to host");
    cuda(call, cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

  std::unique_ptr<Communicator> do_split(const Call& call, std::optional<int> colour, int key, const std::string& label) override {
    const std::int64_t mine[] = {colour ? *colour : -1, key};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    do_gather_words(call, mine, all);
    std::vector<int> members;
    for (int r = 0; r < size(); ++r)
      if (all[2 * static_cast<std::size_t>(r)] == mine[0]) members.push_back(r);
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1]; });
    const int own = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    std::vector<int> ranks;
    for (const int m : members) ranks.push_back(world_ranks()[static_cast<std::size_t>(m)]);

    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = options_.share_on_split ? 1 : 0;
    config.collnetEnable = options_.collnet_on_split ? 1 : 0;
    if (options_.max_ctas > 0) config.maxCTAs = options_.max_ctas;
    // NCCL writes the handle from a thread of its own, after a timeout of ours too: its place must stay.
    ncclComm_t& child = *children_.emplace_back(std::make_unique<ncclComm_t>(nullptr));
    issue(call, [&] { return nccl().comm_split(comm_, colour ? *colour : NCCL_SPLIT_NOCOLOR, key, &child, &config); }, false);
    if (!colour) return nullptr;
    auto made = std::make_unique<Nccl>(fmt::format("{}/{}.{}", name(), label, *colour), own, std::move(ranks), world_, child, options_);
    made->report_to(progress());
    made->settle(call);
    return made;
  }

  std::optional<Registration> do_register(const std::shared_ptr<void>& memory, std::int64_t bytes) override {
    if (!nccl().comm_register || !nccl().comm_deregister) return Registration{{}, fmt::format("NCCL {} has no ncclCommRegister", nccl_version())};
    if (bytes == 0) return Registration{std::make_shared<char>(), {}};   // another rank may have some
    void* handle = nullptr;
    const std::lock_guard lock(world_->mutex);
    leave_if_aborted({.kind = CommKind::words});
    const ncclResult_t result = nccl().comm_register(comm_, memory.get(), static_cast<std::size_t>(bytes), &handle);
    if (result != ncclSuccess) return Registration{{}, fmt::format("ncclCommRegister: {}", nccl().get_error_string(result))};
    if (!handle) return Registration{{}, "NCCL registers nothing (NCCL_LOCAL_REGISTER)"};
    registered_->push_back(handle);
    return Registration{std::shared_ptr<void>(handle, [world = world_, comm = comm_, all = registered_, memory](void* of) {
                          const std::lock_guard held(world->mutex);
                          const auto at = std::find(all->begin(), all->end(), of);
                          if (at == all->end()) return;   // the communicator has ended, and with it this
                          all->erase(at);
                          if (world->aborted || std::uncaught_exceptions() > 0) world->kept.push_back(memory);   // until those have ended that may still use it
                          else nccl().comm_deregister(comm, of);
                        }),
                        {}};
  }

  void do_wait(const Call& call) override {
    cuda(call, cudaEventRecord(event_, stream()), "cudaEventRecord");
    poll(call, [&] {
      const cudaError_t state = cudaEventQuery(event_);
      if (state != cudaSuccess && state != cudaErrorNotReady) cuda(call, state, "while waiting");
      return state == cudaSuccess;
    });
  }

  static bool accepted(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }
  static std::size_t count(const Call& call) { return static_cast<std::size_t>(call.count); }
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(options_.stream); }

  /// Hands `body` to NCCL and waits until the host's part of it (connections, launch) is done.
  template <class Body>
  void issue(const Call& call, Body body, bool grouped = true) {
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(world_->mutex);
      leave_if_aborted(call);
      if (grouped) nccl().group_start();
      result = body();
      const ncclResult_t end = grouped ? nccl().group_end() : ncclSuccess;
      if (accepted(result)) result = end;
    }
    if (!accepted(result)) give_up(call, CommFault::library, message(result));
    if (!together_) settle(call);
  }

  void settle(const Call& call) {
    poll(call, [] { return true; });
  }

  /// Until NCCL has nothing in progress and `done`; looks often at first, then every millisecond.
  template <class Done>
  void poll(const Call& call, Done done) {
    const auto end = Clock::now() + options_.limit;
    for (int spins = 0;; ++spins) {
      ncclResult_t state = ncclSuccess, result = ncclSuccess;
      {
        const std::lock_guard lock(world_->mutex);
        leave_if_aborted(call);
        result = nccl().comm_get_async_error(comm_, &state);
      }
      turn();
      if (result != ncclSuccess) give_up(call, CommFault::library, message(result));
      if (!accepted(state)) give_up(call, state == ncclRemoteError ? CommFault::peer_lost : CommFault::library, message(state));
      if (state == ncclSuccess && done()) return;
      if (!watched() && Clock::now() > end) give_up(call, CommFault::timeout, fmt::format("not done within {} ms", options_.limit.count()));
      if (spins < 1000) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void leave_if_aborted(const Call& call) const {
    if (world_->aborted) throw error(CommFault::aborted, call, world_->reason);
  }

  [[noreturn]] void give_up(const Call& call, CommFault fault, const std::string& reason) {
    const CommError e = error(fault, call, reason);
    abort(e.what());
    throw e;
  }

  void cuda(const Call& call, cudaError_t result, const char* what) {
    if (result != cudaSuccess) give_up(call, CommFault::library, fmt::format("{}: {}", what, cudaGetErrorString(result)));
  }

  std::string message(ncclResult_t result) const {
    std::string text = nccl().get_error_string(result);
    const std::lock_guard lock(world_->mutex);
    if (world_->aborted) return text;
    if (const char* last = nccl().get_last_error(comm_); last && *last) text += fmt::format(" ({})", shown(last, 200));
    return text;
  }

  /// What was issued is carried out on all ranks, with a limit; false where it was not.
  bool finalize() noexcept {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(world_->mutex);
      if (world_->aborted) return false;
      for (void* handle : *registered_) nccl().comm_deregister(comm_, handle);
      registered_->clear();
      state = nccl().comm_finalize(comm_);
    }
    for (const auto end = Clock::now() + options_.limit; state == ncclInProgress && Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard lock(world_->mutex);
      if (world_->aborted || nccl().comm_get_async_error(comm_, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess;
  }

  void release() noexcept {
    // While an exception passes, the others are not here to finish with: waiting for them would keep back who failed, and why.
    bool healthy = !world_->aborted && std::uncaught_exceptions() == 0;
    if (healthy) healthy = finalize();
    if (!healthy) abort("left without the others");
    const std::lock_guard lock(world_->mutex);
    if (std::erase(world_->live, comm_) > 0) {   // else it was ended with the others
      if (healthy) nccl().comm_destroy(comm_);
      else nccl().comm_abort(comm_);
    }
    registered_->clear();
    if (event_) cudaEventDestroy(event_);
    if (scratch_) cudaFree(scratch_);
  }

  std::shared_ptr<NcclWorld> world_;
  ncclComm_t comm_;
  NcclOptions options_;
  bool together_ = false;
  cudaEvent_t event_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::shared_ptr<std::vector<void*>> registered_ = std::make_shared<std::vector<void*>>();   ///< shared with the handles, which may live longer
  std::vector<std::unique_ptr<ncclComm_t>> children_;
};

}  // namespace

NcclId nccl_unique_id() {
  ncclUniqueId id;
  if (const auto r = nccl().get_unique_id(&id); r != ncclSuccess) throw std::runtime_error(fmt::format("ncclGetUniqueId: {}", nccl().get_error_string(r)));
  NcclId out;
  static_assert(sizeof(id.internal) == sizeof(out));
  std::memcpy(out.data(), id.internal, out.size());
  return out;
}

std::string nccl_version() {
  int code = 0;
  nccl().get_version(&code);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

const std::map<std::string, std::string>& nccl_environment_defaults() {
  static const std::map<std::string, std::string> defaults{{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_RAS_ADDR", "localhost:28028"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}};
  return defaults;
}

std::unique_ptr<Communicator> nccl_communicator(int rank, int ranks, const NcclId& id, const NcclOptions& options) {
  ncclUniqueId unique;
  std::memcpy(unique.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) all[static_cast<std::size_t>(r)] = r;
  auto world = std::make_shared<NcclWorld>();
  NcclOptions mine = options;
  if (!mine.stream) {
    check_cuda(cudaStreamCreateWithFlags(&world->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    mine.stream = world->stream;
  }
  ncclComm_t comm = nullptr;
  if (const ncclResult_t result = nccl().comm_init_rank_config(&comm, ranks, unique, rank, &config); result != ncclSuccess && result != ncclInProgress) {
    if (comm) nccl().comm_abort(comm);
    throw CommError(CommFault::library, {rank, "world", "open", 0, {}}, nccl().get_error_string(result));
  }
  return std::make_unique<Nccl>("world", rank, std::move(all), std::move(world), comm, mine);
}

void nccl_use_stream(Communicator& communicator, void* stream) { dynamic_cast<Nccl&>(communicator).use_stream(stream); }

}  // namespace moeplan
