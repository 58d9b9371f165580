/// Expert exchanges of multi_gpu_bench: the ways of the executor's dispatch and combine, over one routing.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/multi_gpu.hpp"
#include "executor/walk/once.hpp"
#include "sim/cost/expert_places.hpp"
#include "sim/load/random.hpp"

namespace moeplan::multi_gpu {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The experts of each token [tokens, top_k]: those with the smallest of exponential variables of rate `counts` (Efraimidis and Spirakis 2006).
std::vector<std::int64_t> draw(const Routing& r, std::int64_t tokens, const std::vector<double>& counts, std::int64_t rank) {
  Random random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<std::int64_t> out;
  std::vector<std::pair<double, std::int64_t>> keys(index(r.experts));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t e = 0; e < r.experts; ++e) {
      // A trace of another number of experts is stretched over these.
      const double share = counts.empty() ? 1.0 : counts[index(e * static_cast<std::int64_t>(counts.size()) / r.experts)];
      keys[index(e)] = {share > 0 ? -std::log(random.uniform()) / share : INFINITY, e};
    }
    std::partial_sort(keys.begin(), keys.begin() + r.top_k, keys.end());
    for (std::int64_t j = 0; j < r.top_k; ++j) out.push_back(keys[index(j)].second);
  }
  return out;
}

/// [tokens, hidden], small integers that neither rank nor row nor column shares with its neighbours: sums of their shares are exact in bf16.
std::vector<float> values(std::int64_t tokens, std::int64_t hidden, std::int64_t rank) {
  std::vector<float> out(index(tokens * hidden));
  for (std::int64_t i = 0; i < tokens * hidden; ++i) out[index(i)] = static_cast<float>((i + 5 * (i / hidden) + 3 * rank) % 16);
  return out;
}

}  // namespace

Exchanges::Exchanges(const Routing& of, std::int64_t ranks, std::int64_t tokens, const std::vector<double>& counts) : of_(of), ranks_(ranks), tokens_(tokens), rows_(index(ranks * ranks), 0) {
  std::vector<std::int64_t> received(index(ranks), 0);
  for (std::int64_t p = 0; p < ranks; ++p) {
    chosen_.push_back(draw(of, tokens, counts, p));
    for (const std::int64_t e : chosen_.back()) ++rows_[index(p * ranks + e / local())], ++received[index(e / local())];
  }
  most_rows_ = *std::max_element(received.begin(), received.end());
  skew_ = static_cast<double>(most_rows_) / static_cast<double>(tokens * of.top_k);
}

std::vector<std::int64_t> Exchanges::nodes() const { return ranks_ >= 4 ? std::vector{ranks_, ranks_ / 2} : std::vector{ranks_}; }

std::string Exchanges::name(const char* how, const char* way) const { return fmt::format("{} {} {}, {} tokens, max/mean {:.2f}", of_.model, how, way, tokens_, skew_); }

std::vector<Row> Exchanges::predicted(const ClusterSpec& cluster) const {
  const std::int64_t copies = tokens_ * of_.top_k;
  const CommCall call{.collective = Collective::dispatch, .group = Group::expert, .payload = {bytes(copies)}, .rows = copies, .tokens = tokens_, .experts = of_.experts, .direct = true};
  Runtime apart, once;
  apart.deduplicated_dispatch = false, once.deduplicated_dispatch = true;
  const auto all = static_cast<int>(ranks_);
  const double each = Links(cluster, apart).price(call, {all, 1}, skew_).median.value, memory = cluster.device.memory_bandwidth.value * cluster.device.achieved_bandwidth;
  std::vector<Row> rows{{name("copies", "dispatch"), bytes(copies), each}, {name("copies", "combine"), bytes(copies), each}};
  const Links links(cluster, once);
  const auto distinct = [&](std::int64_t domains) { return static_cast<double>(tokens_) * distinct_domains(static_cast<double>(of_.experts), static_cast<double>(of_.top_k), static_cast<double>(domains)); };
  for (const std::int64_t node : nodes()) {
    double sent = distinct(ranks_), arrived = sent, moved = links.price(call, {all, 1}, skew_).median.value;
    if (node < ranks_) {   // tokens to distinct nodes, then those of a node to distinct ranks of it
      CommCall second = call;
      second.tokens = std::llround(distinct(ranks_ / node));
      second.experts = of_.experts * node / ranks_;
      moved = links.price(call, {static_cast<int>(ranks_ / node), static_cast<int>(node)}, skew_).median.value + links.price(second, {static_cast<int>(node), 1}, skew_).median.value;
      sent += distinct(ranks_ / node), arrived += distinct(ranks_ / node);
    }
    // Each hop's rows are put together from where they are, and copies made of what has arrived last.
    const double on_device = static_cast<double>(bytes(1)) * (2 * sent + arrived + static_cast<double>(copies)) / memory;
    for (const char* way : {"dispatch", "combine"}) rows.push_back({name(node < ranks_ ? "two hops" : "once", way), static_cast<std::int64_t>(sent) * bytes(1), moved + on_device});
  }
  return rows;
}

std::vector<Row> Exchanges::measured(const Machine& m) const {
  const std::int64_t rank = m.world.rank();
  std::vector<Row> rows = predicted(m.cluster);
  std::size_t next = 0;
  const auto measure = [&](const Call& call) { rows[next] = timed(m, rows[next], call), ++next; };

  std::vector<std::int64_t> sent, arriving;
  for (std::int64_t p = 0; p < ranks_; ++p) sent.push_back(rows_[index(rank * ranks_ + p)] * of_.hidden), arriving.push_back(rows_[index(p * ranks_ + rank)] * of_.hidden);
  measure([&] { m.world.all_to_all(m.send.get<void>(), sent, m.receive.get<void>(), arriving, DType::bf16); });
  measure([&] { m.world.all_to_all(m.receive.get<void>(), arriving, m.send.get<void>(), sent, DType::bf16); });

  const Backend::Memory tokens = m.backend.allocate({bytes(tokens_)}, "tokens"), back = m.backend.allocate({bytes(tokens_)}, "tokens back"), experts = m.backend.allocate({bytes(most_rows_)}, "rows of experts");
  const TensorView from{tokens.get(), DType::bf16, {tokens_, of_.hidden}}, home{back.get(), DType::bf16, {tokens_, of_.hidden}}, there{experts.get(), DType::bf16, {most_rows_, of_.hidden}};
  const std::vector<float> x = values(tokens_, of_.hidden, rank), weights(index(tokens_ * of_.top_k), 1.0f / static_cast<float>(of_.top_k));
  m.backend.write(from, x);
  for (const std::int64_t node : nodes()) {
    std::unique_ptr<Communicator> between, inside;
    std::vector<std::pair<Communicator*, std::int64_t>> ways{{&m.world, local()}};
    if (node < ranks_) {
      between = m.world.split(static_cast<int>(rank % node), static_cast<int>(rank), "between");
      inside = m.world.split(static_cast<int>(rank / node), static_cast<int>(rank), "inside");
      ways = {{between.get(), local() * node}, {inside.get(), local()}};
    }
    const std::int64_t most_tokens = ranks_ * tokens_, numbers = 4 * most_tokens * of_.top_k;   // all tokens of all ranks; of i32 and f32 each
    OnceRoutes routes;
    routes.most = {.there = {bytes(most_tokens)}, .back = {bytes(most_tokens)}, .words = {4 * numbers}, .ways = {8 * numbers + 8192}, .rows = most_rows_};
    routes.memory = m.backend.allocate(routes.most.ways, "ways of tokens");
    const Backend::Memory buffer = m.backend.allocate(routes.most.buffer(), "exchange buffer");
    learn_once(routes, ways, rank * local(), local(), tokens_, of_.top_k, chosen_[index(rank)], weights, m.backend, buffer.get(), "bench");
    const auto dispatch = [&] { dispatch_once(routes, from, there, m.backend, buffer.get()); };
    const auto combine = [&] { combine_once(routes, there, home, m.backend, buffer.get()); };
    measure(dispatch);
    measure(combine);
    m.backend.clear(home);
    dispatch(), combine();
    std::vector<float> y(x.size());
    m.backend.wait();
    m.backend.read(home, y);
    if (const auto wrong = std::mismatch(x.begin(), x.end(), y.begin()); wrong.first != x.end())
      throw std::runtime_error(fmt::format("{}: row {} came back as {}, sent as {}", rows[next - 1].what, (wrong.first - x.begin()) / of_.hidden, *wrong.second, *wrong.first));
  }
  return rows;
}

}  // namespace moeplan::multi_gpu
