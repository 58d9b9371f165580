/// One rank alone is that rank among the others: its weights, its memory, its calls; only what arrives is made up.

#include <gtest/gtest.h>

#include <numeric>

#include "executor/slice/slice.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

TEST(SliceRoutes, KeepEveryTotalWhoeverSentTheRows) {
  // Three ranks of two experts; rank 1 has sent 5 and 2 rows to its own experts, of which 4 and 9 rows arrive.
  const std::vector<std::int64_t> kept{1, 0, 5, 2, 3, 1}, arriving{4, 9};
  const Routes r = slice_routes(kept, arriving, 1, 3);
  EXPECT_EQ(r.rows_of_expert, arriving);
  EXPECT_EQ(r.sent_rows(), 12);
  EXPECT_EQ(r.received_rows(), 13);
  EXPECT_EQ(r.sent, (std::vector<std::int64_t>{1, 6, 5}));  // one row beyond what arrives counts as the neighbour's
  EXPECT_EQ(r.received, (std::vector<std::int64_t>{0, 0, 4, 2, 0, 7}));
  EXPECT_THROW((void)slice_routes(kept, std::vector<std::int64_t>{1}, 1, 3), std::logic_error);
}

TEST(SliceWorld, HoldsThisRankInEveryPlace) {
  const auto backend = cpu_backend(CpuStorage::as_planned);
  const RankPlace place{2, {.ep = 2, .dp_shard = 4}};
  const auto world = slice_world(place, *backend);
  EXPECT_EQ(world->rank(), 2);
  EXPECT_EQ(world->size(), 4);
  const auto experts = world->split(2, 2, "expert");
  EXPECT_EQ(experts->size(), 2);
  EXPECT_EQ(experts->world_ranks(), (std::vector<int>{2, 3}));
  EXPECT_EQ(experts->rank(), 0);
  float whole[8] = {0, 0, 0, 0, 5, 6, 0, 0};
  world->all_gather(whole + 4, whole, 2, DType::f32);
  EXPECT_EQ(std::vector<float>(whole, whole + 8), (std::vector<float>{5, 6, 5, 6, 5, 6, 5, 6}));
  float part[2];
  world->reduce_scatter(whole, part, 2, DType::f32);
  EXPECT_EQ(part[0], 20);  // four ranks with 5
  std::int32_t from[3] = {1, 2, 3}, to[5] = {};
  experts->all_to_all(from, std::vector<std::int64_t>{1, 2}, to, std::vector<std::int64_t>{1, 4}, DType::i32);
  EXPECT_EQ(std::vector<std::int32_t>(to, to + 5), (std::vector<std::int32_t>{1, 2, 3, 1, 2}));
  EXPECT_EQ(world->gather_words(std::vector<std::int64_t>{7, 8}), (std::vector<std::int64_t>{7, 8, 7, 8, 7, 8, 7, 8}));
  EXPECT_THROW((void)world->split(0, 0, "friends"), CommError);
}

/// What a rank holds and does in a step.
struct RankStep {
  MemoryBreakdown memory;
  SliceRows rows;             ///< that reached its experts
  CommCounters counted;
  Tensors values;             ///< of every parameter, as held, before the step
  std::int64_t tokens = 0;
};

RankStep step_of(const Problem& p, const Plan& q, const TrainOptions& options, Communicator& world,
                 const std::vector<Batch>& all) {
  const auto backend = cpu_backend(CpuStorage::as_planned);
  Trainer trainer(p, q, *backend, options, &world);
  randomise(trainer.parameters(), options.seed, p.model, *backend);
  RankStep out;
  for (const Parameter& w : trainer.parameters().all()) out.values[w.name] = values_of(w, *backend);
  const RankPlace place = trainer.parameters().place();
  std::vector<Batch> mine;
  for (std::int64_t j = 0; j < q.micro_batches; ++j)
    mine.push_back(all[static_cast<std::size_t>(j * q.parallelism.dp() + place.data_index())]);
  trainer.ranks()->reset_counters();
  const StepReport report = trainer.step(mine);
  EXPECT_TRUE(std::isfinite(report.loss)) << report.loss;
  out.tokens = report.tokens;
  out.memory = trainer.memory();
  out.counted = data_only(trainer.ranks()->counters());
  for (const RoutesOf& r : trainer.walk().routes_of_last_step())
    out.rows[{trainer.program().slots[static_cast<std::size_t>(r.slot)].layer, r.micro_batch}] = r.routes.rows_of_expert;
  return out;
}

class RankAlone : public testing::TestWithParam<ParityCase> {};

TEST_P(RankAlone, HoldsAndDoesWhatTheRankAmongTheOthersDoes) {
  const ParityCase& c = GetParam();
  const Problem p = problem(shrunk(shipped(c.file), 4), c.full ? full(6) : lora(6));
  const Plan q = on_ranks(p, c.parallelism, c.micro_batches, c.recompute);
  TrainOptions options;
  options.walk.routed_bound = 8;
  const std::vector<Batch> all = data(p, 1, c.micro_batches * c.parallelism.dp()).front();
  const int world = c.parallelism.world();
  std::vector<RankStep> together(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& w) { together[static_cast<std::size_t>(w.rank())] = step_of(p, q, options, w, all); });
  for (const int r : {0, world / 2, world - 1}) {
    SCOPED_TRACE(r);
    const RankStep& real = together[static_cast<std::size_t>(r)];
    const auto backend = cpu_backend(CpuStorage::as_planned);
    options.walk.slice = &real.rows;
    const RankStep alone = step_of(p, q, options, *slice_world({r, q.parallelism}, *backend), all);
    EXPECT_EQ(alone.values, real.values) << "the same seeded weights, made in their place";
    EXPECT_EQ(alone.memory, real.memory);
    EXPECT_EQ(alone.rows, real.rows) << "tokens of each expert";
    EXPECT_EQ(alone.tokens, real.tokens);
    for (const auto& [kind, name] : EnumNames<CommKind>::names) {
      const auto k = static_cast<std::size_t>(kind);
      EXPECT_EQ(alone.counted[k].calls, real.counted[k].calls) << name;
      EXPECT_EQ(alone.counted[k].payload, real.counted[k].payload) << name;
      if (kind != CommKind::all_to_all) {  // which of its rows stay at home is its own router's word
        EXPECT_EQ(alone.counted[k].sent, real.counted[k].sent) << name;
      }
    }
  }
}

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";
INSTANTIATE_TEST_SUITE_P(
    Plans, RankAlone,
    testing::Values(ParityCase{"k3_8_ranks_ep4_fsdp8", k3, false, {.ep = 4, .dp_shard = 8, .expert_shard = 2}, Recompute::full},
                    ParityCase{"k3_8_ranks_ep8", k3, false, {.ep = 8, .dp_shard = 8}, Recompute::full, 2},
                    ParityCase{"qwen_full_ep2_fsdp4", qwen, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}},
                    ParityCase{"qwen_ep4_replicated", qwen, false, {.ep = 4, .dp_replicate = 4}},
                    ParityCase{"k3_pp2_ep2_fsdp2", k3, false, {.pp = 2, .ep = 2, .dp_shard = 2}, Recompute::full, 3}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(RankAlone, CountsWhatStandsForCommunicationApart) {
  const Problem p = problem(shrunk(shipped(qwen), 2), lora(6));
  const Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
  const auto backend = cpu_backend(CpuStorage::as_planned);
  SliceRows rows;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(p.model.layers.size()); ++l) rows[{l, 0}] = {3, 4};
  TrainOptions options;
  options.walk.slice = &rows;
  const auto world = slice_world({1, q.parallelism}, *backend);
  Trainer trainer(p, q, *backend, options, world.get());
  randomise(trainer.parameters(), 1, p.model, *backend);
  const StepReport report = trainer.step({batch(p, q, 3)});
  EXPECT_GT(trainer.walk().communication_seconds(), 0);
  EXPECT_LT(trainer.walk().communication_seconds(), report.seconds);
}

TEST(RankAlone, WithPartsInHostMemoryHasTheBitsWithout) {
  ModelSpec model = shrunk(shipped(qwen), 2);
  model.hidden = 512;   // values of 1024 tokens are 1 MiB: they leave
  const Problem p = problem(std::move(model), lora(1024));
  SliceRows rows;
  for (std::int32_t l = 0; l < 2; ++l)
    for (std::int32_t j = 0; j < 2; ++j) rows[{l, j}] = {900, 636};
  struct Seen {
    std::vector<double> norms;
    Tensors values;
    Bytes host;
    bool operator==(const Seen& o) const { return norms == o.norms && values == o.values; }
  };
  const auto run = [&](Offload offload) {
    Plan q = on_ranks(p, {.ep = 4, .dp_shard = 4}, 2);
    q.offload = offload;
    const auto backend = cpu_backend(CpuStorage::as_planned);
    TrainOptions options;
    options.walk.slice = &rows;
    const auto world = slice_world({1, q.parallelism}, *backend);
    Trainer trainer(p, q, *backend, options, world.get());
    randomise(trainer.parameters(), 1, p.model, *backend);
    stir(trainer.parameters(), *backend);
    Seen out;
    for (std::uint64_t s = 0; s < 2; ++s) out.norms.push_back(trainer.step({batch(p, q, 10 * s), batch(p, q, 10 * s + 1)}).gradient_norm);
    for (const Parameter& each : trainer.parameters().all())
      if (each.trained) out.values[each.name] = values_of(each, *backend);
    out.host = trainer.memory().host;
    return out;
  };
  const Seen plain = run(Offload::none);
  EXPECT_GT(plain.norms.front(), 0);
  for (const Offload offload : {Offload::optimizer, Offload::weights, Offload::activations, Offload::all}) {
    const Seen away = run(offload);
    EXPECT_TRUE(away == plain) << name_of(offload);
    EXPECT_GT(away.host, plain.host) << name_of(offload);
  }
}

}  // namespace
}  // namespace moeplan
