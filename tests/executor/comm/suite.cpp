#include "tests/executor/comm/suite.hpp"

#include <algorithm>

namespace moeplan::suite {
namespace {

/// Element `i` of rank `r`: at most 63, so that 8 ranks add up exactly in every element type, bf16 and u8 included.
int value(int r, std::int64_t i) { return static_cast<int>((r * 7 + i * 3) % 31); }
int sum_over(int ranks, std::int64_t i) {
  int sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, i);
  return sum;
}

template <class T>
T as(int v) {
  if constexpr (std::is_same_v<T, std::uint16_t>) return float_to_bf16(static_cast<float>(v));
  else return static_cast<T>(v);
}
template <class T>
constexpr DType type_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::bf16;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::i64;
  return DType::u8;
}
template <class T, class F>
std::vector<T> filled(std::int64_t n, F f) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(as<T>(f(i)));
  return out;
}

template <class T>
void all_reduce_sum(Communicator& c, Memory& m) {
  for (const std::int64_t n : {1, 5, 1000}) {
    Buffer<T> data(m, filled<T>(n, [&](auto i) { return value(c.rank(), i); }));
    c.all_reduce(data.data(), n, type_of<T>());
    c.wait();
    expect_equal(data.values(), filled<T>(n, [&](auto i) { return sum_over(c.size(), i); }), "sum");
  }
}

void all_reduce_max_and_min(Communicator& c, Memory& m) {
  const std::int64_t n = 40;
  Buffer<float> high(m, filled<float>(n, [&](auto i) { return value(c.rank(), i); })), low(m, high.values());
  c.all_reduce(high.data(), n, DType::f32, Reduction::max);
  c.all_reduce(low.data(), n, DType::f32, Reduction::min);
  c.wait();
  const auto over = [&](std::int64_t i, bool most) {
    int best = value(0, i);
    for (int r = 1; r < c.size(); ++r) best = most ? std::max(best, value(r, i)) : std::min(best, value(r, i));
    return best;
  };
  expect_equal(high.values(), filled<float>(n, [&](auto i) { return over(i, true); }), "max");
  expect_equal(low.values(), filled<float>(n, [&](auto i) { return over(i, false); }), "min");
}

template <class T>
void all_gather(Communicator& c, Memory& m) {
  const std::int64_t n = 33;
  Buffer<T> part(m, filled<T>(n, [&](auto i) { return value(c.rank(), i); })), whole(m, static_cast<std::size_t>(n * c.size()));
  c.all_gather(part.data(), whole.data(), n, type_of<T>());
  c.wait();
  expect_equal(whole.values(), filled<T>(n * c.size(), [&](auto i) { return value(static_cast<int>(i / n), i % n); }), "whole");
}

void all_gather_in_place(Communicator& c, Memory& m) {
  const std::int64_t n = 16;
  Buffer<std::int32_t> whole(m, filled<std::int32_t>(n * c.size(), [&](auto i) { return i / n == c.rank() ? value(c.rank(), i % n) : -1; }));
  c.all_gather(whole.data() + n * c.rank(), whole.data(), n, DType::i32);
  c.wait();
  expect_equal(whole.values(), filled<std::int32_t>(n * c.size(), [&](auto i) { return value(static_cast<int>(i / n), i % n); }), "whole");
}

void calls_issued_together(Communicator& c, Memory& m) {
  std::vector<std::unique_ptr<Buffer<std::int32_t>>> wholes;
  Buffer<float> sum(m, filled<float>(5, [&](auto i) { return static_cast<float>(i + c.rank()); }));
  c.begin_together();
  for (const std::int64_t n : {3, 16, 1}) {
    wholes.push_back(std::make_unique<Buffer<std::int32_t>>(m, filled<std::int32_t>(n * c.size(), [&](auto i) { return i / n == c.rank() ? value(c.rank(), i % n) : -1; })));
    c.all_gather(wholes.back()->data() + n * c.rank(), wholes.back()->data(), n, DType::i32);
  }
  c.all_reduce(sum.data(), 5, DType::f32);
  c.end_together();
  c.wait();
  for (const auto& whole : wholes) {
    const auto n = static_cast<std::int64_t>(whole->values().size()) / c.size();
    expect_equal(whole->values(), filled<std::int32_t>(n * c.size(), [&](auto i) { return value(static_cast<int>(i / n), i % n); }), "whole");
  }
  expect_equal(sum.values(), filled<float>(5, [&](auto i) { return static_cast<float>(i * c.size() + c.size() * (c.size() - 1) / 2); }), "sum");
}
template <class T>
void reduce_scatter(Communicator& c, Memory& m) {
  const std::int64_t n = 21;
  Buffer<T> whole(m, filled<T>(n * c.size(), [&](auto i) { return value(c.rank(), i); })), part(m, static_cast<std::size_t>(n));
  c.reduce_scatter(whole.data(), part.data(), n, type_of<T>());
  c.wait();
  expect_equal(part.values(), filled<T>(n, [&](auto i) { return sum_over(c.size(), n * c.rank() + i); }), "slice");
}

void reduce_scatter_in_place(Communicator& c, Memory& m) {
  const std::int64_t n = 8;
  Buffer<float> whole(m, filled<float>(n * c.size(), [&](auto i) { return value(c.rank(), i); }));
  c.reduce_scatter(whole.data(), whole.data() + n * c.rank(), n, DType::f32);
  c.wait();
  const auto all = whole.values();
  expect_equal(std::vector<float>(all.begin() + n * c.rank(), all.begin() + n * (c.rank() + 1)),
               filled<float>(n, [&](auto i) { return sum_over(c.size(), n * c.rank() + i); }), "slice");
}

/// Row counts from rank a to rank b, some zero.
std::int64_t rows(int a, int b) { return (a * 5 + b * 3) % 4; }

template <class T>
void ragged(Communicator& c, Memory& m, const std::function<std::int64_t(int, int)>& count) {
  std::vector<std::int64_t> send_counts, receive_counts;
  std::vector<T> sent, want;
  for (int r = 0; r < c.size(); ++r) {
    send_counts.push_back(count(c.rank(), r));
    receive_counts.push_back(count(r, c.rank()));
    for (std::int64_t i = 0; i < send_counts.back(); ++i) sent.push_back(as<T>((c.rank() * 16 + r * 2 + static_cast<int>(i)) % 120));
    for (std::int64_t i = 0; i < receive_counts.back(); ++i) want.push_back(as<T>((r * 16 + c.rank() * 2 + static_cast<int>(i)) % 120));
  }
  Buffer<T> from(m, sent), to(m, want.size());
  c.all_to_all(from.data(), send_counts, to.data(), receive_counts, type_of<T>());
  c.wait();
  expect_equal(to.values(), want, "rows");
}

template <class T>
void all_to_all(Communicator& c, Memory& m) { ragged<T>(c, m, rows); }
void all_to_all_of_nothing(Communicator& c, Memory& m) { ragged<float>(c, m, [](int, int) { return 0; }); }
void all_to_all_to_one(Communicator& c, Memory& m) { ragged<float>(c, m, [](int, int b) { return b == 0 ? 9 : 0; }); }

void send_and_receive_along_the_line(Communicator& c, Memory& m) {
  const std::int64_t n = 12;
  Buffer<float> data(m, filled<float>(n, [&](auto i) { return c.rank() == 0 ? value(0, i) : 0; }));
  if (c.rank() > 0) c.receive(data.data(), n, DType::f32, c.rank() - 1);
  if (c.rank() + 1 < c.size()) c.send(data.data(), n, DType::f32, c.rank() + 1);
  c.wait();
  expect_equal(data.values(), filled<float>(n, [&](auto i) { return value(0, i); }), "passed on");
}

void send_receive_round_the_ring(Communicator& c, Memory& m) {
  const std::int64_t n = 12;
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  Buffer<float> out(m, filled<float>(n, [&](auto i) { return value(c.rank(), i); })), in(m, static_cast<std::size_t>(n));
  const Transfer sends[] = {{out.data(), n, DType::f32, next}}, receives[] = {{in.data(), n, DType::f32, previous}};
  c.send_receive(sends, receives);
  c.wait();
  expect_equal(in.values(), filled<float>(n, [&](auto i) { return value(previous, i); }), "from the previous rank");
}

void send_receive_keeps_list_order(Communicator& c, Memory& m) {
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  Buffer<std::int32_t> a(m, std::vector<std::int32_t>{c.rank()}), b(m, std::vector<std::int32_t>{c.rank() + 100, 7}), x(m, 1), y(m, 2);
  const Transfer sends[] = {{a.data(), 1, DType::i32, next}, {b.data(), 2, DType::i32, next}};
  const Transfer receives[] = {{x.data(), 1, DType::i32, previous}, {y.data(), 2, DType::i32, previous}};
  c.send_receive(sends, receives);
  c.wait();
  expect_equal(x.values(), {previous}, "first");
  expect_equal(y.values(), {previous + 100, 7}, "second");
}

void gather_words(Communicator& c, Memory&) {
  const std::vector<std::int64_t> mine{c.rank(), -c.rank() * (std::int64_t{1} << 40)};
  std::vector<std::int64_t> want;
  for (int r = 0; r < c.size(); ++r) want.insert(want.end(), {r, -r * (std::int64_t{1} << 40)});
  expect_equal(c.gather_words(mine), want, "words");
}

void barrier(Communicator& c, Memory&) {
  for (int i = 0; i < 3; ++i) c.barrier();
  c.wait();
}

void split_by_colour_orders_by_key(Communicator& c, Memory& m) {
  const int colour = c.rank() % 2;
  const auto half = c.split(colour, -c.rank(), "half");
  if (half->size() != (c.size() + 1 - colour) / 2) throw std::runtime_error(fmt::format("{} ranks", half->size()));
  for (int r = 0; r + 1 < half->size(); ++r)
    if (half->world_ranks()[static_cast<std::size_t>(r)] <= half->world_ranks()[static_cast<std::size_t>(r) + 1]) throw std::runtime_error("not ordered by key");
  if (half->world_ranks()[static_cast<std::size_t>(half->rank())] != c.world_ranks()[static_cast<std::size_t>(c.rank())])
    throw std::runtime_error("own rank is not where it says");
  if (half->name() != fmt::format("{}/half.{}", c.name(), colour)) throw std::runtime_error(half->name());
  Buffer<std::int32_t> sum(m, std::vector<std::int32_t>{c.rank()});
  half->all_reduce(sum.data(), 1, DType::i32);
  half->wait();
  std::int32_t want = 0;
  for (int r = colour; r < c.size(); r += 2) want += r;
  expect_equal(sum.values(), {want}, "sum over the colour");
}

void split_without_colour_gives_none(Communicator& c, Memory&) {
  const auto some = c.split(c.rank() == 0 ? std::optional(0) : std::nullopt, 0, "first");
  if ((some != nullptr) != (c.rank() == 0)) throw std::runtime_error("a communicator for a rank without colour, or none with one");
  if (some && some->size() != 1) throw std::runtime_error("more ranks than one");
  c.barrier();
  c.wait();
}

void split_twice(Communicator& c, Memory& m) {
  const auto half = c.split(c.rank() * 2 / c.size(), c.rank(), "half");
  const auto quarter = half->split(half->rank() % 2, half->rank(), "quarter");
  Buffer<std::int32_t> one(m, std::vector<std::int32_t>{1});
  quarter->all_reduce(one.data(), 1, DType::i32);
  quarter->wait();
  expect_equal(one.values(), {quarter->size()}, "ranks of the grandchild");
}

/// Calls of two communicators in turn, none waited for before the next.
void calls_on_two_queues(Communicator& c, Memory& m) {
  const auto half = c.split(c.rank() % 2, c.rank(), "half");
  half->move_beside();
  constexpr std::int64_t n = 1 << 16;
  const auto parts = static_cast<std::int64_t>(half->size());
  Buffer<std::int32_t> whole(m, static_cast<std::size_t>(n * c.size())), sum(m, filled<std::int32_t>(n, [&](auto i) { return value(c.rank(), i); })),
      gathered(m, static_cast<std::size_t>(n * parts)), part(m, filled<std::int32_t>(n, [&](auto i) { return value(c.rank(), i); }));
  for (int round = 0; round < 10; ++round) {
    c.all_gather(part.data(), whole.data(), n, DType::i32);
    half->all_gather(part.data(), gathered.data(), n, DType::i32);
    if (round == 0) half->all_reduce(sum.data(), n, DType::i32);
  }
  half->wait();
  c.wait();
  const auto member = [&](std::int64_t i) { return c.rank() % 2 + 2 * static_cast<int>(i / n); };
  expect_equal(whole.values(), filled<std::int32_t>(n * c.size(), [&](auto i) { return value(static_cast<int>(i / n), i % n); }), "of all");
  expect_equal(gathered.values(), filled<std::int32_t>(n * parts, [&](auto i) { return value(member(i), i % n); }), "of the half");
  expect_equal(sum.values(), filled<std::int32_t>(n, [&](auto i) {
    int all = 0;
    for (int r = c.rank() % 2; r < c.size(); r += 2) all += value(r, i);
    return all;
  }), "sum of the half");
}

void counters_count_bytes(Communicator& c, Memory& m) {
  const auto n = static_cast<std::int64_t>(c.size());
  const auto words = static_cast<std::size_t>(n);
  Buffer<float> a(m, 6 * words), b(m, 6);
  c.reset_counters();
  c.all_reduce(a.data(), 6 * n, DType::f32);
  c.all_gather(b.data(), a.data(), 6, DType::f32);
  c.reduce_scatter(a.data(), b.data(), 6, DType::f32);
  std::vector<std::int64_t> one(words, 1);
  Buffer<float> to(m, words);
  c.all_to_all(a.data(), one, to.data(), one, DType::f32);
  c.wait();
  const auto check = [&](CommKind kind, CommCounter want) {
    const CommCounter& got = c.counter(kind);
    if (!(got == want)) throw std::runtime_error(fmt::format("{}: {} calls, {} payload, {} sent", name_of(kind), got.calls, got.payload, got.sent));
  };
  check(CommKind::all_reduce, {1, 24 * n, 48 * (n - 1)});
  check(CommKind::all_gather, {1, 24 * n, 24 * (n - 1)});
  check(CommKind::reduce_scatter, {1, 24 * n, 24 * (n - 1)});
  check(CommKind::all_to_all, {1, 4 * n, 4 * (n - 1)});
}

/// Calls on it while it is known and afterwards; known to a communicator that ends before it.
void memory_known_beforehand(Communicator& c, Memory& m) {
  const std::int64_t n = 1000, bytes = 2 * n * c.size() * 4;
  std::shared_ptr<void> memory = c.shareable(bytes);
  if (!memory) memory = {m.allocate(static_cast<std::size_t>(bytes)), [](void*) {}};
  auto* const whole = static_cast<float*>(memory.get());
  const auto use = [&](Communicator& by) {
    const auto mine = filled<float>(n, [&](auto i) { return value(by.rank(), i); });
    m.upload(whole + n * by.rank(), mine.data(), mine.size() * sizeof(float));
    by.all_gather(whole + n * by.rank(), whole, n, DType::f32);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(by.size()), n);
    by.all_to_all(whole, counts, whole + n * by.size(), counts, DType::f32);   // of the gathered rows, those of one's own number, from all
    by.wait();
    std::vector<float> out(static_cast<std::size_t>(n * by.size()));
    m.download(out.data(), whole, out.size() * sizeof(float));
    expect_equal(out, filled<float>(n * by.size(), [&](auto i) { return value(static_cast<int>(i / n), i % n); }), "gathered");
    m.download(out.data(), whole + n * by.size(), out.size() * sizeof(float));
    expect_equal(out, filled<float>(n * by.size(), [&](auto i) { return value(by.rank(), i % n); }), "exchanged");
  };
  Registration known = c.register_memory(memory, bytes);
  const std::int64_t is_known = known.handle ? 1 : 0;
  expect_equal(c.gather_words(std::span(&is_known, 1)), std::vector<std::int64_t>(static_cast<std::size_t>(c.size()), is_known), "known to all ranks or to none");
  if (known.handle && !known.refused.empty()) throw std::runtime_error("registered, and refused: " + known.refused);
  use(c);
  known = {};
  use(c);
  auto part = c.split(0, c.rank(), "all");
  known = part->register_memory(memory, bytes);
  use(*part);
  part.reset();
  use(c);
}

void the_same_order_passes_the_check(Communicator& c, Memory& m) {
  ragged<float>(c, m, rows);
  c.barrier();
  c.check_order();
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"all_reduce_sum_f32", all_reduce_sum<float>},
      {"all_reduce_sum_bf16", all_reduce_sum<std::uint16_t>},
      {"all_reduce_sum_i32", all_reduce_sum<std::int32_t>},
      {"all_reduce_sum_i64", all_reduce_sum<std::int64_t>},
      {"all_reduce_sum_u8", all_reduce_sum<std::uint8_t>},
      {"all_reduce_max_and_min", all_reduce_max_and_min},
      {"all_gather_f32", all_gather<float>},
      {"all_gather_bf16", all_gather<std::uint16_t>},
      {"all_gather_u8", all_gather<std::uint8_t>},
      {"all_gather_in_place", all_gather_in_place},
      {"calls_issued_together", calls_issued_together},
      {"reduce_scatter_f32", reduce_scatter<float>},
      {"reduce_scatter_i64", reduce_scatter<std::int64_t>},
      {"reduce_scatter_in_place", reduce_scatter_in_place},
      {"all_to_all_f32", all_to_all<float>},
      {"all_to_all_bf16", all_to_all<std::uint16_t>},
      {"all_to_all_u8", all_to_all<std::uint8_t>},
      {"all_to_all_of_nothing", all_to_all_of_nothing},
      {"all_to_all_to_one", all_to_all_to_one},
      {"send_and_receive_along_the_line", send_and_receive_along_the_line},
      {"send_receive_round_the_ring", send_receive_round_the_ring},
      {"send_receive_keeps_list_order", send_receive_keeps_list_order},
      {"gather_words", gather_words},
      {"barrier", barrier},
      {"split_by_colour_orders_by_key", split_by_colour_orders_by_key},
      {"split_without_colour_gives_none", split_without_colour_gives_none},
      {"split_twice", split_twice},
      {"calls_on_two_queues", calls_on_two_queues},
      {"counters_count_bytes", counters_count_bytes},
      {"memory_known_beforehand", memory_known_beforehand},
      {"the_same_order_passes_the_check", the_same_order_passes_the_check},
  };
  return all;
}

}  // namespace moeplan::suite
