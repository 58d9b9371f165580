#include "executor/slice/slice.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"

namespace moeplan {
namespace {

std::int64_t sum(std::span<const std::int64_t> v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

/// Elements as a backend copies them: bytes and long words go as i32.
struct Elements {
  std::byte* data;
  DType dtype;
  std::int64_t count;
  [[nodiscard]] TensorView at(std::int64_t first, std::int64_t n) const {
    return {data + first * plain_bytes(dtype), dtype, {n}};
  }
};

Elements elements(const void* data, DType dtype, std::int64_t count) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(data));  // what is only sent is only read
  if (dtype != DType::u8 && dtype != DType::i64) return {at, dtype, count};
  const std::int64_t bytes = count * plain_bytes(dtype);
  if (bytes % 4 != 0)
    throw InputError("--rank-slice", std::to_string(bytes) + " bytes of a type that is sent as bytes cannot be copied",
                     "bf16 or f32");
  return {at, DType::i32, bytes / 4};
}

class SliceCommunicator final : public Communicator {
 public:
  SliceCommunicator(std::string name, int rank, std::vector<int> ranks, const RankPlace& place, Backend& backend)
      : Communicator(std::move(name), rank, std::move(ranks)), place_(place), backend_(backend) {}

  void abort(const std::string&) noexcept override {}

 private:
  void do_all_reduce(const Call& call, void* data) override {
    if (call.reduction == Reduction::sum) scale(data, call);
  }
  void do_all_gather(const Call& call, const void* part, void* whole) override {
    const Elements from = elements(part, call.dtype, call.count), to = elements(whole, call.dtype, call.count * size());
    if (to.data != from.data) backend_.copy(from.at(0, from.count), to.at(0, from.count));
    for (std::int64_t filled = 1, all = size(); filled < all; filled *= 2) {  // twice as much with each copy
      const std::int64_t n = std::min(filled, all - filled) * from.count;
      backend_.copy(to.at(0, n), to.at(filled * from.count, n));
    }
  }
  void do_reduce_scatter(const Call& call, const void* whole, void* part) override {
    const Elements from = elements(whole, call.dtype, call.count * size()), to = elements(part, call.dtype, call.count);
    if (const TensorView mine = from.at(rank() * to.count, to.count); mine.data != to.data)
      backend_.copy(mine, to.at(0, to.count));
    if (call.reduction == Reduction::sum) scale(part, call);
  }
  void do_all_to_all(const Call& call, const void* send, std::span<const std::int64_t> send_counts, void* receive,
                     std::span<const std::int64_t> receive_counts) override {
    const Elements from = elements(send, call.dtype, sum(send_counts)),
                   to = elements(receive, call.dtype, sum(receive_counts));
    if (from.count == 0 && to.count > 0) backend_.clear(to.at(0, to.count));
    for (std::int64_t at = 0; from.count > 0 && at < to.count; at += from.count) {
      const std::int64_t n = std::min(from.count, to.count - at);
      backend_.copy(from.at(0, n), to.at(at, n));
    }
  }
  void do_send_receive(const Call& call, std::span<const Transfer>, std::span<const Transfer> receives) override {
    constexpr float deviation = 0.02f;
    for (const Transfer& t : receives)
      backend_.fill_normal({static_cast<std::byte*>(t.data), t.dtype, {t.count}}, call.sequence, deviation);
  }
  void do_barrier(const Call&) override {}
  std::unique_ptr<Communicator> do_split(const Call& call, std::optional<int> colour, int,
                                         const std::string& label) override {
    if (!colour) return nullptr;
    if (label == "stage") {
      std::vector<int> ranks(static_cast<std::size_t>(place_.parallelism.stage_ranks()));
      std::iota(ranks.begin(), ranks.end(), place_.stage() * place_.parallelism.stage_ranks());
      return child(label, place_.in_stage(), std::move(ranks));
    }
    for (const auto& [group, name] : EnumNames<Group>::names)
      if (label == name) return child(label, place_.index(group), place_.members(group));
    throw error(CommFault::bad_call, call, "a split by " + label + ", which is no group of a plan");
  }
  void do_gather_words(const Call&, std::span<const std::int64_t> words, std::span<std::int64_t> all) override {
    for (std::size_t r = 0; r < all.size(); r += std::max<std::size_t>(1, words.size()))
      std::copy(words.begin(), words.end(), all.begin() + static_cast<std::ptrdiff_t>(r));
  }
  void do_wait(const Call&) override { backend_.wait(); }

  std::unique_ptr<Communicator> child(const std::string& label, int rank, std::vector<int> ranks) const {
    return std::make_unique<SliceCommunicator>(name() + "/" + label, rank, std::move(ranks), place_, backend_);
  }
  /// The sum over ranks that are all equal to this one.
  void scale(void* data, const Call& call) {
    const TensorView t = elements(data, call.dtype, call.count).at(0, call.count);
    if (t.dtype == DType::i32) throw error(CommFault::bad_call, call, "a sum of integers on the device");
    backend_.add(t, t, static_cast<float>(size() - 1));
  }

  RankPlace place_;
  Backend& backend_;
};

}  // namespace

Routes slice_routes(std::span<const std::int64_t> kept, std::span<const std::int64_t> arriving, int index, int ranks) {
  const auto local = kept.size() / static_cast<std::size_t>(ranks), mine = static_cast<std::size_t>(index),
             neighbour = static_cast<std::size_t>((index + 1) % ranks);
  if (arriving.size() != local)
    throw std::logic_error("drawn rows of " + std::to_string(arriving.size()) + " experts for " +
                           std::to_string(local));
  Routes out{.local_experts = static_cast<std::int64_t>(local),
             .sent = {},
             .received = std::vector<std::int64_t>(local * static_cast<std::size_t>(ranks), 0),
             .rows_of_expert = {arriving.begin(), arriving.end()}};
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
    out.sent.push_back(sum(kept.subspan(r * local, local)));
  for (std::size_t e = 0; e < local; ++e) {
    const std::int64_t own = std::min(kept[mine * local + e], arriving[e]);
    out.received[mine * local + e] += own;
    out.received[neighbour * local + e] += arriving[e] - own;
    const std::int64_t beyond = kept[mine * local + e] - own;
    out.sent[mine] -= beyond, out.sent[neighbour] += beyond;
  }
  return out;
}

std::unique_ptr<Communicator> slice_world(const RankPlace& place, Backend& backend) {
  std::vector<int> ranks(static_cast<std::size_t>(place.parallelism.world()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<SliceCommunicator>("world", place.rank, std::move(ranks), place, backend);
}

}  // namespace moeplan
