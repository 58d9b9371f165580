#include "executor/walk/once.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/backend/convert.hpp"
#include "executor/ranks/groups.hpp"
#include "executor/rendezvous/rank_process.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t sum(const std::vector<std::int64_t>& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

/// The buffer in its three parts.
struct Rooms {
  const OnceBytes& most;
  std::byte* at;

  [[nodiscard]] TensorView there(DType type, const Shape& shape) const { return part(0, most.there, type, shape); }
  [[nodiscard]] TensorView back(DType type, const Shape& shape) const { return part(most.there.value, most.back, type, shape); }
  [[nodiscard]] TensorView words(const Shape& shape) const { return part((most.there + most.back).value, most.words, DType::f32, shape); }

 private:
  [[nodiscard]] TensorView part(std::int64_t from, Bytes room, DType type, const Shape& shape) const {
    if (stored_bytes(type, shape) > room) throw std::logic_error("tokens on their way to experts in too little room");
    return {at + from, type, shape};
  }
};

/// Four bytes an element, behind what the routes have so far.
TensorView kept(OnceRoutes& routes, DType type, const Shape& shape) {
  const TensorView out{routes.memory.get() + routes.used, type, shape};
  routes.used += (4 * shape.elements() + 255) / 256 * 256;
  if (routes.used > routes.most.ways.value) throw std::logic_error("the ways of tokens in too little room");
  return out;
}

void write(const TensorView& to, const std::vector<std::int64_t>& from, Backend& backend) {
  if (!from.empty()) backend.write(to, std::vector<float>(from.begin(), from.end()));
}

std::vector<std::int64_t> scaled(std::vector<std::int64_t> rows, std::int64_t by) {
  for (std::int64_t& n : rows) n *= by;
  return rows;
}

/// Rows of `width` elements from rank to rank.
void exchange(Communicator& group, const TensorView& from, const std::vector<std::int64_t>& sent, const TensorView& to,
              const std::vector<std::int64_t>& received, std::int64_t width, Backend& backend) {
  const Wire wire = wire_of(from.dtype);
  after_compute(group, backend);
  group.all_to_all(from.data, scaled(sent, width * wire.per_element), to.data,
                   scaled(received, width * wire.per_element), wire.dtype);
  before_compute(group, backend);
}

/// Numbers of each row, by way of the host.
std::vector<float> exchange_numbers(Hop& hop, std::span<const float> mine, std::int64_t width, bool back,
                                    Backend& backend, const Rooms& rooms) {
  const std::vector<std::int64_t>&sent = back ? hop.received : hop.sent, &received = back ? hop.sent : hop.received;
  const std::int64_t here = sum(sent) * width, there = sum(received) * width;
  const TensorView all = rooms.words({here + there});
  const TensorView from{all.data, DType::f32, {here}}, to{all.data + 4 * here, DType::f32, {there}};
  if (here > 0) backend.write(from, mine);
  exchange(*hop.group, from, sent, to, received, width, backend);
  std::vector<float> out(index(there));
  backend.wait();
  if (there > 0) backend.read(to, out);
  return out;
}

/// Expert slots that arrived, `every` numbers a row of which the first `top_k` are slots (-1: none for this rank), must be numbers of slots below
/// `end`: what else came would be dropped with its copy, and nobody told. Throws RankBlamed about the rank that sent it.
void require_slots(const Hop& hop, const std::vector<float>& arrived, std::int64_t every, std::int64_t top_k, std::int64_t first, std::int64_t end) {
  std::size_t from = 0;
  std::int64_t left = hop.received.empty() ? 0 : hop.received.front();
  for (std::int64_t row = 0; row * every < static_cast<std::int64_t>(arrived.size()); ++row, --left) {
    while (left == 0 && from + 1 < hop.received.size()) left = hop.received[++from];
    for (std::int64_t j = 0; j < top_k; ++j) {
      const float slot = arrived[index(row * every + j)];
      if (slot == -1.0f || (slot >= static_cast<float>(first) && slot < static_cast<float>(end) && slot == std::floor(slot))) continue;
      const int rank = hop.group->world_ranks()[from];
      throw RankBlamed(rank, fmt::format("rank {} sent {} as the expert slot of a token, which must be a number from {} to {}", rank, slot, first, end - 1));
    }
  }
}

op::Permute permute_of(std::int64_t tokens, std::int64_t top, std::int64_t width, std::int64_t kinds) {
  return {.tokens = tokens, .top_k = top, .width = width, .experts = kinds};
}

/// Rows once for each choice that is one.
void copy_rows(const op::Permute& op, const TensorView& x, const TensorView& choices, const TensorView& map,
               const TensorView& to, Backend& backend) {
  if (op.tokens == 0) return;
  backend.call({op, Pass::forward, {}}, std::array{x, choices, to, map}, std::array<TensorView, 4>{}, {});
}

/// And their sum.
void sum_rows(const op::Permute& op, const TensorView& rows, const TensorView& choices, const TensorView& map,
              const TensorView& x, Backend& backend) {
  if (op.tokens == 0) return;
  backend.call({op, Pass::backward, {}}, std::array{TensorView{}, choices, TensorView{}, map},
               std::array{x, TensorView{}, rows, TensorView{}}, {});
}

std::int64_t width_of(const TensorView& t) { return t.shape[t.shape.rank - 1]; }

/// All hops there: what has arrived, in `rooms.back`.
TensorView there(OnceRoutes& routes, const TensorView& x, Backend& backend, const Rooms& rooms) {
  TensorView rows = x;
  const std::int64_t width = width_of(x);
  for (Hop& hop : routes.hops) {
    const op::Permute op = permute_of(hop.tokens, hop.top, width, hop.group->size());
    const TensorView out = rooms.there(x.dtype, {hop.rows.sent, width});
    rows.shape = {hop.tokens, width};
    copy_rows(op, rows, hop.choices, hop.map, out, backend);
    rows = rooms.back(x.dtype, {hop.rows.received, width});
    exchange(*hop.group, out, hop.sent, rows, hop.received, width, backend);
  }
  return rows;
}

/// All hops back: `rows` of the tokens that had arrived -> `y`, summed over where they had gone.
void back(OnceRoutes& routes, TensorView rows, const TensorView& y, Backend& backend, const Rooms& rooms) {
  const std::int64_t width = width_of(y);
  for (std::size_t h = routes.hops.size(); h-- > 0;) {
    Hop& hop = routes.hops[h];
    const TensorView out = rooms.there(y.dtype, {hop.rows.sent, width});
    exchange(*hop.group, rows, hop.received, out, hop.sent, width, backend);
    TensorView to = h == 0 ? y : rooms.back(y.dtype, {hop.tokens, width});
    to.shape = {hop.tokens, width};
    sum_rows(permute_of(hop.tokens, hop.top, width, hop.group->size()), out, hop.choices, hop.map, to, backend);
    rows = to;
  }
}

/// The first `n` rows.
TensorView first(TensorView t, std::int64_t n) {
  t.shape = {n, width_of(t)};
  return t;
}

op::Permute local_permute(const OnceRoutes& r, std::int64_t width) {
  return permute_of(r.arrived, r.top, width, static_cast<std::int64_t>(r.rows_of_expert.size()));
}

}  // namespace

void learn_once(OnceRoutes& routes, const std::vector<std::pair<Communicator*, std::int64_t>>& groups,
                std::int64_t first_slot, std::int64_t local_slots, std::int64_t tokens, std::int64_t top_k,
                std::vector<std::int64_t> slots, std::vector<float> weights, Backend& backend, std::byte* buffer,
                const std::string& where) {
  const Rooms rooms{routes.most, buffer};
  routes.tokens = tokens, routes.top_k = top_k, routes.used = 0;
  routes.hops.resize(groups.size());
  std::int64_t here = tokens;
  for (std::size_t h = 0; h < groups.size(); ++h) {
    const auto& [group, each] = groups[h];
    Hop& hop = routes.hops[h];
    const auto ranks = static_cast<std::int64_t>(group->size());
    hop.group = group, hop.tokens = here, hop.top = 1, hop.order.clear();
    std::vector<std::vector<std::int64_t>> ways(index(here));  // of each row, ascending
    std::vector<std::vector<std::int64_t>> rows_for(index(ranks));
    for (std::int64_t t = 0; t < here; ++t) {
      auto& way = ways[index(t)];
      for (std::int64_t j = 0; j < top_k; ++j)
        if (const std::int64_t s = slots[index(t * top_k + j)]; s >= 0) way.push_back(s / each % ranks);
      std::sort(way.begin(), way.end());
      way.erase(std::unique(way.begin(), way.end()), way.end());
      hop.top = std::max(hop.top, static_cast<std::int64_t>(way.size()));
      for (const std::int64_t r : way) rows_for[index(r)].push_back(t);
    }
    std::vector<std::int64_t> choices(index(here * hop.top), -1);
    for (std::int64_t t = 0; t < here; ++t)
      std::copy(ways[index(t)].begin(), ways[index(t)].end(), choices.begin() + t * hop.top);
    hop.sent.clear();
    std::vector<std::int64_t> said;  // to each rank: tokens, and their copies
    std::vector<float> numbers;
    for (std::int64_t r = 0; r < ranks; ++r) {
      hop.sent.push_back(static_cast<std::int64_t>(rows_for[index(r)].size()));
      said.insert(said.end(), {hop.sent.back(), 0});
      for (const std::int64_t t : rows_for[index(r)]) {
        hop.order.push_back(t);
        for (std::int64_t j = 0; j < top_k; ++j) {
          const std::int64_t s = slots[index(t * top_k + j)];
          const bool theirs = s >= 0 && s / each % ranks == r;
          numbers.push_back(theirs ? static_cast<float>(s) : -1.0f);
          said.back() += theirs;
        }
        numbers.insert(numbers.end(), weights.begin() + t * top_k, weights.begin() + (t + 1) * top_k);
      }
    }
    const std::vector<std::int64_t> all = group->gather_words(said);
    require_counts(*group, all, kMostRows, "the tokens that it sends to a rank");
    hop.received.clear();
    std::int64_t copies = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      hop.received.push_back(all[index(2 * (r * ranks + group->rank()))]);
      copies += all[index(2 * (r * ranks + group->rank()) + 1)];
    }
    const bool last = h + 1 == groups.size();
    const int rank = group->world_ranks()[index(group->rank())];
    if (last) require_rows(where, copies, fmt::format("rank {}", rank), routes.most.rows);
    else require_rows(where, copies, fmt::format("the node of rank {}", rank), routes.most.rows * groups.back().first->size());
    hop.rows = {.sent = sum(hop.sent), .received = sum(hop.received), .own = hop.sent[index(group->rank())]};
    hop.choices = kept(routes, DType::i32, {here, hop.top}), hop.map = kept(routes, DType::i32, {here, hop.top});
    write(hop.choices, choices, backend);
    const std::vector<float> arrived = exchange_numbers(hop, numbers, 2 * top_k, false, backend, rooms);
    const std::int64_t all_slots = groups.front().second * groups.front().first->size();
    require_slots(hop, arrived, 2 * top_k, top_k, last ? first_slot : 0, last ? first_slot + local_slots : all_slots);
    here = hop.rows.received;
    slots.assign(index(here * top_k), -1), weights.assign(index(here * top_k), 0.0f);
    for (std::int64_t t = 0; t < here; ++t)
      for (std::int64_t j = 0; j < top_k; ++j) {
        slots[index(t * top_k + j)] = static_cast<std::int64_t>(arrived[index(2 * t * top_k + j)]);
        weights[index(t * top_k + j)] = arrived[index((2 * t + 1) * top_k + j)];
      }
  }
  routes.arrived = here, routes.top = 1, routes.rows = 0;
  for (std::int64_t t = 0; t < here; ++t)
    routes.top = std::max(
        routes.top, static_cast<std::int64_t>(std::count_if(slots.begin() + t * top_k, slots.begin() + (t + 1) * top_k,
                                                            [](std::int64_t s) { return s >= 0; })));
  routes.rows_of_expert.assign(index(local_slots), 0);
  routes.place.assign(index(here * routes.top), -1);
  std::vector<std::int64_t> choices(routes.place.size(), -1);
  std::vector<float> shares(routes.place.size(), 0.0f);
  for (std::int64_t t = 0; t < here; ++t) {
    std::int64_t at = t * routes.top;
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int64_t s = slots[index(t * top_k + j)];
      if (s < 0) continue;
      choices[index(at)] = s - first_slot, shares[index(at)] = weights[index(t * top_k + j)],
      routes.place[index(at++)] = j;
      ++routes.rows_of_expert.at(index(s - first_slot)), ++routes.rows;
    }
  }
  routes.choices = kept(routes, DType::i32, {here, routes.top}), routes.map = kept(routes, DType::i32, {here, routes.top});
  routes.weights = kept(routes, DType::f32, {here, routes.top});
  write(routes.choices, choices, backend);
  if (!shares.empty()) backend.write(routes.weights, shares);
}

void dispatch_once(OnceRoutes& routes, const TensorView& x, const TensorView& to, Backend& backend, std::byte* buffer) {
  const TensorView arrived = there(routes, x, backend, {routes.most, buffer});
  copy_rows(local_permute(routes, width_of(x)), arrived, routes.choices, routes.map, first(to, routes.rows), backend);
}

void collect_once(OnceRoutes& routes, const TensorView& from, const TensorView& dx, Backend& backend, std::byte* buffer) {
  const Rooms rooms{routes.most, buffer};
  const TensorView sums = rooms.back(dx.dtype, {routes.arrived, width_of(dx)});
  sum_rows(local_permute(routes, width_of(dx)), first(from, routes.rows), routes.choices, routes.map, sums, backend);
  back(routes, sums, dx, backend, rooms);
}

void combine_once(OnceRoutes& routes, const TensorView& from, const TensorView& y, Backend& backend, std::byte* buffer) {
  const Rooms rooms{routes.most, buffer};
  const TensorView sums = rooms.back(y.dtype, {routes.arrived, width_of(y)});
  const op::Combine op{.tokens = routes.arrived, .top_k = routes.top, .width = width_of(y)};
  if (routes.arrived > 0)
    backend.call({op, Pass::forward, {}}, std::array{first(from, routes.rows), routes.weights, routes.map, sums},
                 std::array<TensorView, 4>{}, {});
  back(routes, sums, y, backend, rooms);
}

void spread_once(OnceRoutes& routes, const TensorView& dy, const TensorView& rows, const TensorView& to,
                 const TensorView& d_weights, Backend& backend, std::byte* buffer) {
  const Rooms rooms{routes.most, buffer};
  const TensorView arrived = there(routes, dy, backend, rooms);
  std::vector<float> weights(index(routes.arrived * routes.top));
  if (routes.arrived > 0) {
    const TensorView d = rooms.words({routes.arrived, routes.top});
    backend.call({op::Combine{.tokens = routes.arrived, .top_k = routes.top, .width = width_of(dy)}, Pass::backward, {}},
                 std::array{first(rows, routes.rows), routes.weights, routes.map, TensorView{}},
                 std::array{first(to, routes.rows), d, TensorView{}, arrived}, {});
    backend.wait();
    if (d_weights.present()) backend.read(d, weights);
  }
  if (!d_weights.present()) return;
  std::vector<float> numbers(index(routes.arrived * routes.top_k), 0.0f);
  for (std::size_t i = 0; i < routes.place.size(); ++i)
    if (routes.place[i] >= 0)
      numbers[i / index(routes.top) * index(routes.top_k) + index(routes.place[i])] = weights[i];
  for (std::size_t h = routes.hops.size(); h-- > 0;) {
    Hop& hop = routes.hops[h];
    const std::vector<float> returned = exchange_numbers(hop, numbers, routes.top_k, true, backend, rooms);
    numbers.assign(index(hop.tokens * routes.top_k), 0.0f);
    for (std::size_t i = 0; i < hop.order.size(); ++i)
      for (std::size_t j = 0; j < index(routes.top_k); ++j)
        numbers[index(hop.order[i]) * index(routes.top_k) + j] += returned[i * index(routes.top_k) + j];
  }
  backend.write(d_weights, numbers);
}

}  // namespace moeplan
