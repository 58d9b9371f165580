#include "executor/comm/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/checked.hpp"

namespace moeplan {
namespace {

constexpr const char* kReductions[] = {"sum", "max", "min"};

std::string one_line(const CommError::Where& where, const std::string& reason) {
  std::string line = fmt::format("rank {}: {} #{} on {}", where.rank, where.operation, where.sequence, where.communicator);
  if (where.peer) line += fmt::format(" with rank {}", *where.peer);
  return line + ": " + reason;
}

/// A call as one word: what must agree between ranks. Counts keep 44 bits, so equal words are equal calls below 2^44 elements.
std::int64_t call_word(CommKind kind, DType dtype, Reduction reduction, std::int64_t count) {
  const std::int64_t compared = kind == CommKind::all_to_all ? 0 : count;
  return static_cast<std::int64_t>(kind) | static_cast<std::int64_t>(dtype) << 5 | static_cast<std::int64_t>(reduction) << 10 |
         (compared & ((std::int64_t{1} << 44) - 1)) << 12;
}

std::string word_text(std::int64_t word) {
  return call_text(static_cast<CommKind>(word & 31), static_cast<DType>(word >> 5 & 31), word >> 12, static_cast<Reduction>(word >> 10 & 3));
}

bool is_collective(CommKind kind) { return kind != CommKind::send && kind != CommKind::receive && kind != CommKind::send_receive; }

}  // namespace

CommError::CommError(CommFault fault, Where where, const std::string& reason)
    : std::runtime_error(one_line(where, reason)), fault_(fault), where_(std::move(where)), reason_(reason) {}

std::string call_text(CommKind kind, DType dtype, std::int64_t count, Reduction reduction) {
  if (kind == CommKind::barrier || kind == CommKind::split) return std::string(name_of(kind));
  if (kind == CommKind::words) return fmt::format("gather_words x {}", count);
  if (kind == CommKind::all_to_all) return fmt::format("all_to_all {}", name_of(dtype));
  std::string text = fmt::format("{} {} x {}", name_of(kind), name_of(dtype), count);
  if (kind == CommKind::all_reduce || kind == CommKind::reduce_scatter) text += fmt::format(", {}", kReductions[static_cast<int>(reduction)]);
  return text;
}

std::int64_t ring_sent_bytes(CommKind kind, std::int64_t payload, int ranks) {
  switch (kind) {
    case CommKind::all_reduce: return static_cast<std::int64_t>(static_cast<__int128>(payload) * 2 * (ranks - 1) / ranks);
    case CommKind::all_gather:
    case CommKind::reduce_scatter:
    case CommKind::words: return payload / ranks * (ranks - 1);
    default: return 0;
  }
}

bool is_transferable(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::i32 || type == DType::i64 || type == DType::u8;
}

std::int64_t element_size(DType type) {
  switch (type) {
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    default: return 1;
  }
}

CommError Communicator::error(CommFault fault, const Call& call, const std::string& reason) const {
  CommError::Where where{world_ranks_[static_cast<std::size_t>(rank_)], name_, std::string(name_of(call.kind)), call.sequence, {}};
  if (call.peer && *call.peer >= 0 && *call.peer < size()) where.peer = world_ranks_[static_cast<std::size_t>(*call.peer)];
  return {fault, where, reason};
}

Communicator::Call Communicator::start(CommKind kind, DType dtype, std::int64_t elements, Reduction reduction) {
  const Call call{kind, dtype, reduction, elements, ++collectives_, {}};
  if (!is_transferable(dtype)) throw error(CommFault::bad_call, call, fmt::format("{} does not travel as such; send it as u8", name_of(dtype)));
  if (elements < 0) throw error(CommFault::bad_call, call, fmt::format("{} elements", elements));
  const std::int64_t word = call_word(kind, dtype, reduction, elements);
  order_.recent[(call.sequence - 1) % Order::kept] = word;
  order_.hash = (order_.hash ^ static_cast<std::uint64_t>(word)) * 1099511628211ull;
  return call;
}

Communicator::Call Communicator::start_transfer(CommKind kind, std::span<const Transfer> sends, std::span<const Transfer> receives) {
  Call call{kind, DType::u8, Reduction::sum, 0, ++transfers_, {}};
  for (const auto list : {sends, receives})
    for (const Transfer& t : list) {
      call.peer = t.peer;
      call.dtype = t.dtype;
      call.count = t.count;
      if (t.peer < 0 || t.peer >= size()) throw error(CommFault::bad_call, call, fmt::format("peer {} of {} ranks", t.peer, size()));
      if (!is_transferable(t.dtype)) throw error(CommFault::bad_call, call, fmt::format("{} does not travel as such; send it as u8", name_of(t.dtype)));
      if (t.count < 0) throw error(CommFault::bad_call, call, fmt::format("{} elements", t.count));
      if (kind != CommKind::send_receive && t.peer == rank_) throw error(CommFault::bad_call, call, "a rank cannot block on itself");
    }
  if (kind == CommKind::send_receive && sends.size() + receives.size() != 1) call.peer.reset();
  return call;
}

void Communicator::count(CommKind kind, std::int64_t payload, std::int64_t sent) {
  CommCounter& c = counters_[static_cast<std::size_t>(kind)];
  ++c.calls;
  c.payload += payload;
  c.sent += sent;
}

void Communicator::perform(const Call& call, std::vector<int> members, const std::function<void()>& body) {
  if (progress_) progress_->enter(name_, std::string(name_of(call.kind)), call.sequence, std::move(members), is_collective(call.kind));
  body();  // when it throws, the progress keeps saying where
  if (progress_) progress_->leave();
}

void Communicator::connect() {
  const Call call{.kind = CommKind::open};   // before the first, #1
  perform(call, world_ranks_, [&] { do_connect(call); });
}

void Communicator::all_reduce(void* data, std::int64_t elements, DType dtype, Reduction reduction) {
  const Call call = start(CommKind::all_reduce, dtype, elements, reduction);
  perform(call, world_ranks_, [&] { do_all_reduce(call, data); });
  const std::int64_t payload = elements * element_size(dtype);
  count(call.kind, payload, ring_sent_bytes(call.kind, payload, size()));
}

void Communicator::all_gather(const void* part, void* whole, std::int64_t elements, DType dtype) {
  const Call call = start(CommKind::all_gather, dtype, elements);
  perform(call, world_ranks_, [&] { do_all_gather(call, part, whole); });
  const std::int64_t payload = elements * element_size(dtype) * size();
  count(call.kind, payload, ring_sent_bytes(call.kind, payload, size()));
}

void Communicator::reduce_scatter(const void* whole, void* part, std::int64_t elements, DType dtype, Reduction reduction) {
  const Call call = start(CommKind::reduce_scatter, dtype, elements, reduction);
  perform(call, world_ranks_, [&] { do_reduce_scatter(call, whole, part); });
  const std::int64_t payload = elements * element_size(dtype) * size();
  count(call.kind, payload, ring_sent_bytes(call.kind, payload, size()));
}

void Communicator::all_to_all(const void* send_data, std::span<const std::int64_t> send_counts, void* receive_data,
                              std::span<const std::int64_t> receive_counts, DType dtype) {
  const Call call = start(CommKind::all_to_all, dtype, 0);
  const auto n = static_cast<std::size_t>(size());
  if (send_counts.size() != n || receive_counts.size() != n)
    throw error(CommFault::bad_call, call, fmt::format("{} send counts and {} receive counts for {} ranks", send_counts.size(), receive_counts.size(), n));
  std::int64_t rows = 0;
  for (const auto counts : {send_counts, receive_counts})
    for (const std::int64_t c : counts)
      if (c < 0) throw error(CommFault::bad_call, call, fmt::format("a count of {}", c));
  for (const std::int64_t c : send_counts) rows = checked_add(rows, c, "all_to_all send counts");
  const auto own = static_cast<std::size_t>(rank_);
  if (send_counts[own] != receive_counts[own])
    throw error(CommFault::bad_call, call, fmt::format("sends {} elements to itself but receives {}", send_counts[own], receive_counts[own]));
  perform(call, world_ranks_, [&] { do_all_to_all(call, send_data, send_counts, receive_data, receive_counts); });
  count(call.kind, rows * element_size(dtype), (rows - send_counts[own]) * element_size(dtype));
}

void Communicator::send(const void* data, std::int64_t elements, DType dtype, int peer) {
  const Transfer one[] = {{const_cast<void*>(data), elements, dtype, peer}};  // only read: it stands in the list of sends
  const Call call = start_transfer(CommKind::send, one, {});
  perform(call, {world_ranks_[static_cast<std::size_t>(peer)]}, [&] { do_send_receive(call, one, {}); });
  count(call.kind, elements * element_size(dtype), elements * element_size(dtype));
}

void Communicator::receive(void* data, std::int64_t elements, DType dtype, int peer) {
  const Transfer one[] = {{data, elements, dtype, peer}};
  const Call call = start_transfer(CommKind::receive, {}, one);
  perform(call, {world_ranks_[static_cast<std::size_t>(peer)]}, [&] { do_send_receive(call, {}, one); });
  count(call.kind, elements * element_size(dtype), 0);
}

void Communicator::send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  const Call call = start_transfer(CommKind::send_receive, sends, receives);
  std::vector<int> peers;
  for (const auto list : {sends, receives})
    for (const Transfer& t : list) peers.push_back(world_ranks_[static_cast<std::size_t>(t.peer)]);
  perform(call, std::move(peers), [&] { do_send_receive(call, sends, receives); });
  std::int64_t payload = 0, sent = 0;
  for (const Transfer& t : sends) {
    payload += t.count * element_size(t.dtype);
    if (t.peer != rank_) sent += t.count * element_size(t.dtype);
  }
  count(call.kind, payload, sent);
}

void Communicator::barrier() {
  const Call call = start(CommKind::barrier, DType::u8, 0);
  perform(call, world_ranks_, [&] { do_barrier(call); });
  count(call.kind, 0, 0);
}

std::unique_ptr<Communicator> Communicator::split(std::optional<int> colour, int key, const std::string& label) {
  const Call call = start(CommKind::split, DType::u8, 0);
  if (colour && *colour < 0) throw error(CommFault::bad_call, call, fmt::format("colour {}; leave it out for a rank without group", *colour));
  std::unique_ptr<Communicator> child;
  perform(call, world_ranks_, [&] { child = do_split(call, colour, key, label); });
  count(call.kind, 0, 0);
  if (child) child->report_to(progress_);
  return child;
}

std::vector<std::int64_t> Communicator::gather_words(std::span<const std::int64_t> words) {
  const Call call = start(CommKind::words, DType::i64, static_cast<std::int64_t>(words.size()));
  std::vector<std::int64_t> all(words.size() * static_cast<std::size_t>(size()));
  perform(call, world_ranks_, [&] { do_gather_words(call, words, all); });
  const auto payload = static_cast<std::int64_t>(all.size() * sizeof(std::int64_t));
  count(call.kind, payload, ring_sent_bytes(call.kind, payload, size()));
  return all;
}

void Communicator::wait() {
  const Call call{CommKind::wait, DType::u8, Reduction::sum, 0, collectives_, {}};
  perform(call, world_ranks_, [&] { do_wait(call); });
}

bool Communicator::follow(void*) { return false; }
void Communicator::lead(void*, const std::shared_ptr<void>&) {}
double Communicator::seconds_between(const std::shared_ptr<void>&, const std::shared_ptr<void>&) { return 0; }

void Communicator::check_order() {
  const Order before = order_;
  const std::uint64_t issued = collectives_;
  std::vector<std::int64_t> mine{static_cast<std::int64_t>(before.hash), static_cast<std::int64_t>(issued)};
  mine.insert(mine.end(), before.recent.begin(), before.recent.end());
  const std::vector<std::int64_t> all = gather_words(mine);
  const std::size_t width = mine.size();
  const Call call{CommKind::words, DType::i64, Reduction::sum, 0, collectives_, {}};
  for (int r = 0; r < size(); ++r) {
    const std::span<const std::int64_t> theirs(all.data() + static_cast<std::size_t>(r) * width, width);
    const std::span<const std::int64_t> first(all.data(), width);
    if (theirs[0] == first[0] && theirs[1] == first[1]) continue;
    const int a = world_ranks_[0], b = world_ranks_[static_cast<std::size_t>(r)];
    if (theirs[1] != first[1])
      throw error(CommFault::mismatch, call, fmt::format("rank {} issued {} collectives, rank {} issued {}", a, first[1], b, theirs[1]));
    const std::uint64_t oldest = issued > Order::kept ? issued - Order::kept : 0;
    for (std::uint64_t s = oldest; s < issued; ++s) {
      const std::size_t at = 2 + s % Order::kept;
      if (first[at] != theirs[at])
        throw error(CommFault::mismatch, call, fmt::format("call #{}: rank {} issued {}, rank {} issued {}", s + 1, a, word_text(first[at]), b, word_text(theirs[at])));
    }
    throw error(CommFault::mismatch, call, fmt::format("ranks {} and {} issued different calls before #{}", a, b, oldest + 1));
  }
}

Registration Communicator::register_memory(const std::shared_ptr<void>& memory, std::int64_t bytes) {
  std::optional<Registration> mine = do_register(memory, bytes);
  if (!mine) return {};
  const std::int64_t word = mine->handle ? 1 : 0;
  const std::vector<std::int64_t> all = gather_words(std::span(&word, 1));
  const auto without = std::find(all.begin(), all.end(), 0);
  if (without == all.end()) return *std::move(mine);
  mine->handle.reset();
  if (mine->refused.empty()) mine->refused = fmt::format("rank {} could not", world_ranks_[static_cast<std::size_t>(without - all.begin())]);
  return *std::move(mine);
}

}  // namespace moeplan
