#include "executor/walk/exchange.hpp"

#include <numeric>
#include <stdexcept>

#include "executor/backend/convert.hpp"

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

/// Copies between the experts' order and the senders' order; `to_experts` says which way.
void reorder(const Exchange& by, const Routes& r, const Rows& experts, const Rows& senders, bool to_experts) {
  const auto ranks = static_cast<std::int64_t>(r.sent.size());
  std::vector<std::int64_t> next(static_cast<std::size_t>(ranks), 0);  // where the next rows of each sender lie
  for (std::int64_t s = 1; s < ranks; ++s)
    next[static_cast<std::size_t>(s)] =
        next[static_cast<std::size_t>(s - 1)] + sum(std::span(r.received)
                                                        .subspan(static_cast<std::size_t>((s - 1) * r.local_experts),
                                                                 static_cast<std::size_t>(r.local_experts)));
  std::int64_t at = 0;
  for (std::int64_t e = 0; e < r.local_experts; ++e)
    for (std::int64_t s = 0; s < ranks; ++s) {
      const std::int64_t n = r.received[static_cast<std::size_t>(s * r.local_experts + e)];
      if (n == 0) continue;
      const TensorView here = experts.at(at, n), there = senders.at(next[static_cast<std::size_t>(s)], n);
      if (to_experts)
        by.backend.copy(there, here);
      else
        by.backend.copy(here, there);
      at += n;
      next[static_cast<std::size_t>(s)] += n;
    }
}

/// Elements on the wire for each rank.
std::vector<std::int64_t> scaled(std::span<const std::int64_t> rows, std::int64_t by) {
  std::vector<std::int64_t> out(rows.begin(), rows.end());
  for (std::int64_t& n : out) n *= by;
  return out;
}

std::vector<std::int64_t> received_by_rank(const Routes& r) {
  std::vector<std::int64_t> out;
  for (std::size_t s = 0; s < r.sent.size(); ++s)
    out.push_back(
        sum(std::span(r.received)
                .subspan(s * static_cast<std::size_t>(r.local_experts), static_cast<std::size_t>(r.local_experts))));
  return out;
}

}  // namespace

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

Routes exchange_counts(Communicator& group, std::span<const std::int64_t> rows_of_expert) {
  const std::vector<std::int64_t> all = group.gather_words(rows_of_expert);
  const std::size_t experts = rows_of_expert.size(), ranks = static_cast<std::size_t>(group.size()),
                    local = experts / ranks, mine = static_cast<std::size_t>(group.rank()) * local;
  Routes out{.local_experts = static_cast<std::int64_t>(local),
             .sent = {},
             .received = {},
             .rows_of_expert = std::vector<std::int64_t>(local, 0)};
  for (std::size_t r = 0; r < ranks; ++r) {
    out.sent.push_back(sum(rows_of_expert.subspan(r * local, local)));
    for (std::size_t e = 0; e < local; ++e) {
      out.received.push_back(all[r * experts + mine + e]);
      out.rows_of_expert[e] += out.received.back();
    }
  }
  return out;
}

void dispatch_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const Rows in = rows_of(from), out = rows_of(to), scratch{by.scratch, out.dtype, out.width};
  const Wire wire = wire_of(in.dtype);
  after_compute(by.group, by.backend);
  by.group.all_to_all(in.data, scaled(routes.sent, in.width * wire.per_element), scratch.data,
                      scaled(received_by_rank(routes), in.width * wire.per_element), wire.dtype);
  before_compute(by.group, by.backend);
  reorder(by, routes, out, scratch, true);
}

void combine_rows(const Exchange& by, const Routes& routes, const TensorView& from, const TensorView& to) {
  const Rows in = rows_of(from), out = rows_of(to), scratch{by.scratch, in.dtype, in.width};
  const Wire wire = wire_of(in.dtype);
  reorder(by, routes, in, scratch, false);
  after_compute(by.group, by.backend);
  by.group.all_to_all(scratch.data, scaled(received_by_rank(routes), in.width * wire.per_element), out.data,
                      scaled(routes.sent, in.width * wire.per_element), wire.dtype);
  before_compute(by.group, by.backend);
  const std::int64_t filled = routes.sent_rows(), rows = to.shape.elements() / out.width;
  if (filled < rows) by.backend.clear(out.at(filled, rows - filled));
}

}  // namespace moeplan
