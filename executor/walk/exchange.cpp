#include "executor/walk/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "executor/backend/convert.hpp"
#include "executor/ranks/groups.hpp"

namespace moeplan {
namespace {

std::int64_t sum(std::span<const std::int64_t> v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

/// Rows as lengths of contiguous memory.
struct Rows {
  std::byte* data;
  DType dtype;
  std::int64_t width;
  [[nodiscard]] TensorView at(std::int64_t row, std::int64_t count) const {
    return {data + row * width * plain_bytes(dtype), dtype, {count, width}};
  }
};

Rows rows_of(const TensorView& t) {
  if (t.columns) throw std::logic_error("an exchange of rows that are a view");
  return {t.data, t.dtype, t.shape[t.shape.rank - 1]};
}

/// Rows of each rank, of [rank][expert].
std::vector<std::int64_t> by_rank(std::span<const std::int64_t> counts, std::int64_t local_experts) {
  std::vector<std::int64_t> out;
  for (std::size_t at = 0; at < counts.size(); at += static_cast<std::size_t>(local_experts))
    out.push_back(sum(counts.subspan(at, static_cast<std::size_t>(local_experts))));
  return out;
}

/// Copies between the experts' order and the senders' order; `to_experts` says which way. `counts`: [sender][expert].
void reorder(const Exchange& by, std::span<const std::int64_t> counts, std::int64_t local_experts, const Rows& experts,
             const Rows& senders, bool to_experts) {
  const std::int64_t ranks = static_cast<std::int64_t>(counts.size()) / std::max<std::int64_t>(1, local_experts);
  const std::vector<std::int64_t> rows = by_rank(counts, local_experts);
  std::vector<std::int64_t> next(rows.size(), 0);  // where the next rows of each sender lie
  std::partial_sum(rows.begin(), rows.end() - 1, next.begin() + 1);
  std::vector<RowRun> runs;
  std::int64_t all = 0;
  for (std::int64_t e = 0; e < local_experts; ++e)
    for (std::int64_t s = 0; s < ranks; ++s) {
      const std::int64_t n = counts[static_cast<std::size_t>(s * local_experts + e)];
      if (n == 0) continue;
      runs.push_back({next[static_cast<std::size_t>(s)], n});
      all += n;
      next[static_cast<std::size_t>(s)] += n;
    }
  by.backend.copy_rows(experts.at(0, all), senders.at(0, all), runs, to_experts);
}

/// Elements on the wire for each rank.
std::vector<std::int64_t> scaled(std::span<const std::int64_t> rows, std::int64_t by) {
  std::vector<std::int64_t> out(rows.begin(), rows.end());
  for (std::int64_t& n : out) n *= by;
  return out;
}

std::vector<std::int64_t> received_by_rank(const Routes& r) { return by_rank(r.received, r.local_experts); }

}  // namespace

void require_rows(const std::string& where, std::int64_t rows, const std::string& whose, std::int64_t bound) {
  if (rows > bound)
    throw std::runtime_error(fmt::format("{}: {} rows reach the experts of {}, its buffer holds {} (overflow action: stop); a larger --routed-bound "
                                         "or a --capacity-factor would do",
                                         where, rows, whose, bound));
}

Wire wire_of(DType held) {
  if (is_transferable(held)) return {held, 1};
  return {DType::u8, plain_bytes(held)};
}

void after_compute(Communicator& group, Backend& backend) {
  if (!group.follow(backend.queue())) backend.wait();
}

void before_compute(Communicator& group, Backend& backend) {
  if (const auto point = group.mark())
    group.lead(backend.queue(), point);
  else
    group.wait();
}

std::int64_t Routes::sent_rows() const { return sum(sent); }
std::int64_t Routes::received_rows() const { return sum(received); }

std::vector<RowRun> rows_of_slots(std::span<const std::int64_t> rows_of_expert, std::span<const std::int64_t> slots,
                                  std::int64_t rank) {
  std::vector<std::int64_t> first(rows_of_expert.size(), 0);
  std::vector<std::vector<std::size_t>> of_expert(rows_of_expert.size());
  for (std::size_t e = 1; e < first.size(); ++e) first[e] = first[e - 1] + rows_of_expert[e - 1];
  for (std::size_t s = 0; s < slots.size(); ++s) of_expert.at(static_cast<std::size_t>(slots[s])).push_back(s);
  std::vector<RowRun> out(slots.size());
  for (std::size_t e = 0; e < of_expert.size(); ++e) {
    const std::int64_t n = rows_of_expert[e], copies = static_cast<std::int64_t>(of_expert[e].size());
    if (copies == 0) throw std::logic_error("an expert without a slot");
    for (std::int64_t c = 0; c < copies; ++c) {
      const std::int64_t from = n * c / copies, until = n * (c + 1) / copies;
      out[of_expert[e][static_cast<std::size_t>((c + rank) % copies)]] = {first[e] + from, until - from};
    }
  }
  return out;
}

namespace {

/// Piece `k` of `chunks` of each run of rows.
RowRun piece_of(const RowRun& run, std::int64_t k, std::int64_t chunks) {
  const std::int64_t from = run.count * k / chunks, until = run.count * (k + 1) / chunks;
  return {run.from + from, until - from};
}

/// Routes of the rows of each slot, by rank.
Routes routes_of(const std::vector<std::vector<RowRun>>& rows, std::size_t local, std::size_t mine) {
  const std::size_t ranks = rows.size();
  Routes out{.local_experts = static_cast<std::int64_t>(local),
             .sent = std::vector<std::int64_t>(ranks, 0),
             .received = {},
             .rows_of_expert = std::vector<std::int64_t>(local, 0)};
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t s = 0; s < local; ++s) {
      out.received.push_back(rows[r][mine * local + s].count);
      out.rows_of_expert[s] += out.received.back();
    }
  for (std::size_t s = 0; s < rows[mine].size(); ++s) out.sent[s / local] += rows[mine][s].count;
  for (const RowRun& run : rows[mine]) {
    if (run.count == 0) continue;
    if (!out.pieces.empty() && out.pieces.back().from + out.pieces.back().count == run.from)
      out.pieces.back().count += run.count;
    else
      out.pieces.push_back(run);
  }
  return out;
}

}  // namespace

Routes exchange_counts(Communicator& group, std::span<const std::int64_t> rows_of_expert,
                       std::span<const std::int64_t> slots, std::int64_t chunks) {
  const std::vector<std::int64_t> all = group.gather_words(rows_of_expert);
  require_counts(group, all, kMostRows, "the rows of its tokens for an expert");
  const std::size_t experts = rows_of_expert.size(), ranks = static_cast<std::size_t>(group.size()),
                    mine = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> in_order;
  if (slots.empty()) {
    in_order.resize(experts);
    std::iota(in_order.begin(), in_order.end(), std::int64_t{0});
    slots = in_order;
  }
  const std::size_t local = slots.size() / ranks;
  std::vector<std::vector<RowRun>> rows;
  for (std::size_t r = 0; r < ranks; ++r)
    rows.push_back(rows_of_slots(std::span(all).subspan(r * experts, experts), slots, static_cast<std::int64_t>(r)));
  Routes out = routes_of(rows, local, mine);
  // Sent from where they lie. Not so the pieces below: what they lie in may be used again before the last has left.
  if (out.pieces.size() == 1 && out.pieces.front().from == 0) out.pieces.clear();
  for (std::int64_t k = 0; chunks > 1 && k < chunks; ++k) {
    std::vector<std::vector<RowRun>> part = rows;
    for (std::vector<RowRun>& of_rank : part)
      for (RowRun& run : of_rank) run = piece_of(run, k, chunks);
    Routes piece = routes_of(part, local, mine);
    if (k > 0) {
      const Routes& before = out.parts.back();
      piece.sent_before = before.sent_before + before.sent_rows();
      piece.received_before = before.received_before + before.received_rows();
    }
    out.parts.push_back(std::move(piece));
  }
  return out;
}

void UnderWay::await(Backend& backend) const {
  there ? group->lead(backend.queue(), there) : group->wait();
}

UnderWay issue(Communicator& group, Backend& backend, bool timed, const std::function<void()>& calls) {
  after_compute(group, backend);
  UnderWay out{.group = &group, .begun = timed ? group.mark(true) : nullptr, .there = {}};
  const auto start = std::chrono::steady_clock::now();
  calls();
  out.blocked = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  out.there = group.mark(timed);
  return out;
}

Landing dispatch_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const Rows in = rows_of(from), out = rows_of(to), scratch{by.scratch, out.dtype, out.width};
  const Wire wire = wire_of(in.dtype);
  const bool as_they_lie = routes.pieces.empty();
  const Rows sent = as_they_lie ? in : scratch,
             arrived = as_they_lie ? scratch : Rows{scratch.at(routes.sent_rows(), 0).data, out.dtype, out.width};
  if (!as_they_lie) by.backend.copy_rows(sent.at(0, routes.sent_rows()), from, routes.pieces, true);
  UnderWay way = issue(by.group, by.backend, by.timed, [&] {
    by.group.all_to_all(sent.data, scaled(routes.sent, in.width * wire.per_element), arrived.data,
                        scaled(received_by_rank(routes), in.width * wire.per_element), wire.dtype);
  });
  return {std::move(way), [by, &routes, out, arrived] { reorder(by, routes.received, routes.local_experts, out, arrived, true); }};
}

Landing combine_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const Rows in = rows_of(from), out = rows_of(to), scratch{by.scratch, in.dtype, in.width};
  const Wire wire = wire_of(in.dtype);
  reorder(by, routes.received, routes.local_experts, in, scratch, false);
  const Rows back = routes.pieces.empty() ? out : Rows{scratch.at(routes.received_rows(), 0).data, in.dtype, in.width};
  UnderWay way = issue(by.group, by.backend, by.timed, [&] {
    by.group.all_to_all(scratch.data, scaled(received_by_rank(routes), in.width * wire.per_element), back.data,
                        scaled(routes.sent, in.width * wire.per_element), wire.dtype);
  });
  return {std::move(way), [by, &routes, out, back] {
            if (!routes.pieces.empty()) by.backend.copy_rows(back.at(0, routes.sent_rows()), out.at(0, 0), routes.pieces, false);
          }};
}

void clear_rest(const Exchange& by, const Routes& routes, const TensorView& to) {
  const Rows out = rows_of(to);
  const std::int64_t filled = routes.sent_rows(), rows = to.shape.elements() / out.width;
  if (filled < rows) by.backend.clear(out.at(filled, rows - filled));
}

void exchange_neighbours(Communicator& group, Routes& routes) {
  routes.of_neighbours = group.gather_words(routes.rows_of_expert);
  require_counts(group, routes.of_neighbours, kMostRows, "the rows of an expert");
  routes.rows_in_calls.assign(static_cast<std::size_t>(routes.local_experts), 0);
  for (std::size_t i = 0; i < routes.of_neighbours.size(); ++i)
    routes.rows_in_calls[i % routes.rows_in_calls.size()] += routes.of_neighbours[i];
}

void gather_neighbours(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const Rows in = rows_of(from), out = rows_of(to), scratch{by.scratch, out.dtype, out.width};
  const Wire wire = wire_of(in.dtype);
  const std::vector<std::int64_t> rows = by_rank(routes.of_neighbours, routes.local_experts);
  std::vector<Transfer> sends, receives;
  const auto mine = static_cast<std::size_t>(by.group.rank());
  std::int64_t at = 0;
  for (std::size_t r = 0; r < rows.size(); at += rows[r++]) {
    if (r == mine) {
      if (rows[r] > 0) by.backend.copy(in.at(0, rows[r]), scratch.at(at, rows[r]));
      continue;
    }
    const int peer = static_cast<int>(r);
    sends.push_back({in.data, rows[mine] * in.width * wire.per_element, wire.dtype, peer});
    receives.push_back({scratch.at(at, 0).data, rows[r] * in.width * wire.per_element, wire.dtype, peer});
  }
  after_compute(by.group, by.backend);
  by.group.send_receive(sends, receives);
  before_compute(by.group, by.backend);
  reorder(by, routes.of_neighbours, routes.local_experts, out, scratch, true);
}

void sum_neighbours(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const std::vector<std::int64_t> rows = by_rank(routes.of_neighbours, routes.local_experts);
  const std::int64_t all = sum(rows), mine = rows[static_cast<std::size_t>(by.group.rank())];
  const Rows in = rows_of(from), out = rows_of(to), parts{by.scratch, in.dtype, in.width},
             arrived{parts.at(all, 0).data, in.dtype, in.width};
  const Wire wire = wire_of(in.dtype);
  reorder(by, routes.of_neighbours, routes.local_experts, in, parts, false);
  after_compute(by.group, by.backend);
  by.group.all_to_all(parts.data, scaled(rows, in.width * wire.per_element), arrived.data,
                      scaled(std::vector<std::int64_t>(rows.size(), mine), in.width * wire.per_element), wire.dtype);
  before_compute(by.group, by.backend);
  for (std::size_t r = 0; r < rows.size() && mine > 0; ++r) {
    const TensorView part = arrived.at(static_cast<std::int64_t>(r) * mine, mine);
    if (r == 0)
      by.backend.copy(part, out.at(0, mine));
    else
      by.backend.add(part, out.at(0, mine), 1);
  }
  const std::int64_t held = to.shape.elements() / out.width;
  if (mine < held) by.backend.clear(out.at(mine, held - mine));
}

}  // namespace moeplan
