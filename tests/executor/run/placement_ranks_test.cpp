/// Experts that follow the load: copies of the hot ones, new placements during a run, and that nothing of it changes
/// what is learnt.

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "core/error.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/ranks/state.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";

struct PlacedCase {
  ParityCase parity;
  ExpertPlacement placement = ExpertPlacement::balanced;
  std::int64_t replicas = 0;
};

std::function<void(Problem&, Plan&)> placed_by_load(ExpertPlacement placement, std::int64_t replicas) {
  return [=](Problem& p, Plan& q) {
    p.cluster.devices_per_node = placement == ExpertPlacement::hierarchical ? 1 : 8;
    place_by_load(p, q, replicas, placement);
  };
}

class PlacedExperts : public testing::TestWithParam<PlacedCase> {};

TEST_P(PlacedExperts, DoWhatOneRankDoes) {
  expect_parity(GetParam().parity, placed_by_load(GetParam().placement, GetParam().replicas));
}

INSTANTIATE_TEST_SUITE_P(
    Placements, PlacedExperts,
    testing::Values(
        PlacedCase{{"moved_ep4", qwen, true, {.ep = 4, .dp_replicate = 4}}},
        PlacedCase{{"copies_ep4", qwen, true, {.ep = 4, .dp_replicate = 4}}, ExpertPlacement::balanced, 4},
        PlacedCase{{"copies_lora_ep2_twice", k3, false, {.ep = 2, .dp_shard = 4}, Recompute::full, 2},
                   ExpertPlacement::hierarchical,
                   2},
        PlacedCase{{"copies_in_pieces", qwen, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, Recompute::full},
                   ExpertPlacement::balanced,
                   2},
        PlacedCase{
            {"copies_of_cut_experts", qwen, true, {.ep = 2, .etp = 2, .dp_shard = 4}}, ExpertPlacement::balanced, 2},
        PlacedCase{{"copies_on_stages", k3, false, {.pp = 2, .ep = 2, .dp_replicate = 2}, Recompute::none, 2},
                   ExpertPlacement::balanced,
                   4}),
    [](const auto& each) { return std::string(each.param.parity.name); });

/// A router that keeps to a few experts, other ones in each layer.
Prepare lopsided() {
  return [](Trainer& t) {
    for (Parameter& p : t.parameters().all()) {
      if (p.cls != WeightClass::router || !p.name.ends_with("gate.weight")) continue;
      std::vector<float> v(static_cast<std::size_t>(p.whole.elements()));
      std::mt19937_64 random(static_cast<std::uint64_t>(p.layer) + 5);
      for (float& x : v) x = std::normal_distribution<float>(0, 1)(random);
      set_from_whole(p, v, t.parameters().place(), t.backend());
    }
  };
}

TrainOptions curve_options(std::int64_t every) {
  TrainOptions o;
  o.learning_rate = 5e-3;
  o.steps = 100;
  o.walk.routed_bound = 8;
  o.walk.rebalance_every = every;
  return o;
}

TEST(Rebalance, LeavesTheCurveAsItIs) {
  for (const bool whole : {true, false}) {
    Problem p = problem(shrunk(shipped(whole ? qwen : k3), 3), whole ? full(6) : lora(6));
    Plan q = on_ranks(
        p, whole ? Parallelism{.ep = 4, .dp_shard = 8, .expert_shard = 2} : Parallelism{.ep = 4, .dp_replicate = 4}, 1);
    placed_by_load(ExpertPlacement::balanced, 4)(p, q);
    const auto batches = data(p, 6, q.parallelism.dp());
    const Outcome one = alone(p, batches, curve_options(0), lopsided()),
                  moved = run_plan(p, q, batches, curve_options(2), lopsided()),
                  still = run_plan(p, q, batches, curve_options(0), lopsided());
    EXPECT_GT(moved.steps[1].moved_bytes, 0) << "after the second step experts move";
    EXPECT_EQ(moved.steps[0].moved_bytes, 0);
    EXPECT_LT(moved.steps[2].rank_max_over_mean, still.steps[2].rank_max_over_mean);
    for (std::size_t s = 0; s < batches.size(); ++s) {
      EXPECT_NEAR(one.steps[s].loss, moved.steps[s].loss, 1e-4) << "step " << s;
      EXPECT_NEAR(still.steps[s].loss, moved.steps[s].loss, 1e-4) << "step " << s;
      EXPECT_NEAR(one.steps[s].gradient_norm, moved.steps[s].gradient_norm, 1e-3 * one.steps[s].gradient_norm)
          << "step " << s;
    }
  }
}

/// Everything a rank has of the model, each tensor whole.
Tensors everything(Trainer& t) {
  Tensors out;
  for (const Parameter& p : t.parameters().all()) {
    out[p.name] = whole_values(p, p.value, p.held, t.ranks(), t.backend());
    if (p.trained) out[p.name + " first"] = whole_values(p, p.first_moment, DType::f32, t.ranks(), t.backend());
    if (p.trained) out[p.name + " second"] = whole_values(p, p.second_moment, DType::f32, t.ranks(), t.backend());
  }
  return out;
}

/// Slots of a layer turned by `by`: everything moves.
std::vector<std::int64_t> turned(std::vector<std::int64_t> words, std::int64_t by) {
  for (std::size_t at = 0; at < words.size(); at += 3 + static_cast<std::size_t>(words[at + 1] + words[at + 2]))
    std::rotate(words.begin() + static_cast<std::ptrdiff_t>(at) + 3,
                words.begin() + static_cast<std::ptrdiff_t>(at) + 3 + by,
                words.begin() + static_cast<std::ptrdiff_t>(at) + 3 + words[at + 1]);
  return words;
}

TEST(Rebalance, MovesStoredWeightsAdaptersAndMomentsWithTheirExpert) {
  for (const DType storage : {DType::bf16, DType::mxfp4, DType::fp8})
    for (const Parallelism& ranks :
         {Parallelism{.ep = 4, .dp_replicate = 4}, Parallelism{.ep = 2, .dp_shard = 4, .expert_shard = 2}}) {
      Problem p = problem(shrunk(shipped(qwen), 1), lora(6));
      p.model.hidden = 128;
      for (Sublayer& s : p.model.layers[0].sublayers)
        if (auto* f = std::get_if<MoeFfn>(&s.mixer)) f->intermediate = 128;
      Plan q = on_ranks(p, ranks, 1);
      q.frozen_storage = storage;
      placed_by_load(ExpertPlacement::balanced, 4)(p, q);
      const auto batches = data(p, 2, q.parallelism.dp());
      run_ranks(q.parallelism.world(), [&](Communicator& c) {
        const auto backend = cpu_backend(CpuStorage::as_planned);
        Trainer t(p, q, *backend, curve_options(0), &c);
        randomise(t.parameters(), 1, p.model, *backend);
        stir(t.parameters(), *backend);
        const auto mine = static_cast<std::size_t>(t.parameters().place().data_index());
        (void)t.step({batches[0][mine]});
        const Tensors before = everything(t);
        const auto was = t.parameters().slots();
        t.ranks()->reset_counters();
        ASSERT_TRUE(t.place(turned(t.placement(), 2)));
        EXPECT_NE(*was.begin()->second, *t.parameters().slots().begin()->second);
        const CommCounter moved = t.ranks()->counters()[static_cast<std::size_t>(CommKind::send_receive)];
        EXPECT_EQ(before, everything(t));
        // What went there must come back: as many bytes, since turning is one to one.
        const CommCounter predicted = moving_volume(t.parameters(), t.parameters().place(), was);
        EXPECT_EQ(moved.calls, predicted.calls);
        EXPECT_GT(sum_over_ranks(c, std::span(&moved.sent, 1)).front(), 0);
        t.ranks()->reset_counters();
        ASSERT_TRUE(t.place(turned(t.placement(), t.placement()[1] - 2)));
        EXPECT_EQ(t.ranks()->counters()[static_cast<std::size_t>(CommKind::send_receive)], predicted);
        EXPECT_EQ(before, everything(t));
        EXPECT_TRUE(std::isfinite(t.step({batches[1][mine]}).loss));
      });
    }
}

TEST(Rebalance, MovesWhatItMustByHand) {
  // Two ranks, experts 0 to 7 in order and then turned by 1: each rank gives one expert away. LoRA: nothing but pairs
  // and moments beside bf16 weights.
  Problem p = problem(shrunk(shipped(qwen), 1), lora(6));
  Plan q = on_ranks(p, {.ep = 2, .dp_replicate = 2}, 1);
  placed_by_load(ExpertPlacement::balanced, 0)(p, q);
  p.load.distribution = UniformLoad{};
  run_ranks(2, [&](Communicator& c) {
    const auto backend = cpu_backend(CpuStorage::as_planned);
    Trainer t(p, q, *backend, curve_options(0), &c);
    std::vector<std::int64_t> words{0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7};
    ASSERT_TRUE(t.place(words));
    t.ranks()->reset_counters();
    ASSERT_TRUE(t.place(turned(words, 1)));
    std::int64_t bytes = 0;
    for (const Parameter& each : t.parameters().all())
      if (is_expert(each.split)) bytes += each.whole.elements() / 8 * (each.trained ? 12 : 2);
    EXPECT_EQ(t.ranks()->counters()[static_cast<std::size_t>(CommKind::send_receive)].sent, bytes);
  });
}

TEST(Rebalance, IsResumedBitForBit) {
  Problem p = problem(shrunk(shipped(k3), 3), lora(6));
  Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
  placed_by_load(ExpertPlacement::balanced, 4)(p, q);
  const auto batches = data(p, 6, 4);
  const Outcome through = run_plan(p, q, batches, curve_options(2), lopsided());
  std::optional<WholeState> saved;
  std::vector<std::int64_t> words;
  Outcome again;
  std::mutex mutex;
  for (const bool second : {false, true})
    run_ranks(4, [&](Communicator& c) {
      const auto backend = cpu_backend(CpuStorage::wide);
      Trainer t(p, q, *backend, curve_options(2), &c);
      const TrainOptions options = curve_options(2);
      randomise(t.parameters(), options.seed, p.model, *backend);
      stir(t.parameters(), *backend);
      lopsided()(t);
      if (c.rank() == 0 && !second) saved.emplace(p, q, CpuStorage::wide);
      if (second) {
        ASSERT_TRUE(t.place(words));
        distribute(c.rank() == 0 ? &*saved : nullptr, t, p);
        t.set_steps_done(3);
      }
      for (std::size_t s = second ? 3 : 0; s < (second ? 6u : 3u); ++s) {
        const StepReport report = t.step({batches[s][static_cast<std::size_t>(t.parameters().place().data_index())]});
        if (c.rank() == 0) again.steps.push_back(report);
      }
      if (!second) collect(t, p, c.rank() == 0 ? &*saved : nullptr);
      const std::lock_guard lock(mutex);
      if (c.rank() == 0) words = t.placement();
    });
  ASSERT_EQ(again.steps.size(), through.steps.size());
  for (std::size_t s = 0; s < 6; ++s) {
    EXPECT_EQ(again.steps[s].loss, through.steps[s].loss) << "step " << s;
    EXPECT_EQ(again.steps[s].gradient_norm, through.steps[s].gradient_norm) << "step " << s;
    EXPECT_EQ(again.steps[s].moved_bytes, through.steps[s].moved_bytes) << "step " << s;
  }
}

TEST(Rebalance, EvensTheRealTracesAt32RanksWith32SpareSlots) {
  // 58 layers of 256 experts each, as SGLang counted them (configs/loads). Experts in their order: the busiest of 32
  // ranks has about 2.3 times the mean.
  Problem p;
  p.model = shipped("deepseek/deepseek-v3.json");
  p.cluster.devices_per_node = 8;
  Plan q;
  q.parallelism = {.ep = 32, .dp_shard = 32};
  q.experts.placement = ExpertPlacement::balanced;
  q.experts.replicas = 32;
  for (const char* name : {"deepseek-v3-prefill-in1024", "deepseek-v3-prefill-in4096", "deepseek-v3-prefill-in512"}) {
    const LoadModel trace = load_load(std::filesystem::path(source) / "configs", name);
    const auto shares = expert_shares(trace, 58, 256);
    ExpertCounts counts;
    double in_order = 0;
    for (std::int32_t l = 0; l < 58; ++l) {
      for (const double s : shares[static_cast<std::size_t>(l)]) counts[3 + l].push_back(std::llround(s * 1e7));
      in_order += rank_max_over_mean(counts[3 + l], {}, 32) / 58;
    }
    const ExpertSlots first = expected_slots(p, q), fresh = slots_by_counts(p, q, counts, first);
    ASSERT_EQ(fresh.size(), 58u);
    double before = 0, after = 0, worst = 0;
    for (const auto& [layer, slots] : fresh) {
      EXPECT_EQ(slots->size(), 288u);
      before += rank_max_over_mean(counts.at(layer), first.at(layer), 32) / 58;
      const double f = rank_max_over_mean(counts.at(layer), slots, 32);
      after += f / 58, worst = std::max(worst, f);
    }
    RecordProperty(std::string(name) + " in order", std::to_string(in_order));
    RecordProperty(std::string(name) + " placed", std::to_string(after));
    RecordProperty(std::string(name) + " worst", std::to_string(worst));
    EXPECT_GT(in_order, 1.9) << name;
    EXPECT_GT(before, 1.5) << name;
    EXPECT_LE(after, 1.05) << name;
  }
}

TEST(Rebalance, KeepsWhatNewSlotsWouldNotImprove) {
  Problem p = problem(shrunk(shipped(qwen), 1), lora(6));
  Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
  placed_by_load(ExpertPlacement::balanced, 0)(p, q);
  const ExpertCounts even{{0, std::vector<std::int64_t>(8, 10)}};
  const ExpertSlots now{
      {0, std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{7, 6, 5, 4, 3, 2, 1, 0})}};
  EXPECT_EQ(slots_by_counts(p, q, even, now).at(0), now.at(0));
  // Two experts take all: they come apart, and the rank that has one of them keeps it.
  const ExpertSlots fresh = slots_by_counts(
      p, q, {{0, {50, 50, 0, 0, 0, 0, 0, 0}}},
      {{0, std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{2, 3, 4, 5, 6, 7, 0, 1})}});
  EXPECT_EQ(rank_max_over_mean(std::vector<std::int64_t>{50, 50, 0, 0, 0, 0, 0, 0}, fresh.at(0), 4), 2);
  const std::vector<std::int64_t>& s = *fresh.at(0);
  EXPECT_TRUE(s[6] == 0 || s[7] == 0 || s[6] == 1 || s[7] == 1);
}

TEST(Rebalance, RefusesWhatDoesNotFollowTheLoad) {
  Problem p = problem(shrunk(shipped(qwen), 1), lora(6));
  const auto backend = cpu_backend(CpuStorage::wide);
  const auto why = [&](const Plan& q, std::int64_t every) -> std::string {
    try {
      refuse_what_cannot_run(p, q, *backend, {.rebalance_every = every}, q.parallelism.world());
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  Plan q = on_ranks(p, {.ep = 4, .dp_replicate = 4}, 1);
  EXPECT_NE(why(q, 3).find("--rebalance-every"), std::string::npos) << why(q, 3);
  q.experts.placement = ExpertPlacement::balanced;
  EXPECT_EQ(why(q, 3), "");
  q.experts.replicas = 3;
  EXPECT_NE(why(q, 0).find("4 does not divide the 11 expert slots"), std::string::npos) << why(q, 0);
  q.experts.replicas = 4;
  EXPECT_EQ(why(q, 0), "");
  q.experts.placement = ExpertPlacement::contiguous;
  EXPECT_NE(why(q, 0).find("copies follow the load"), std::string::npos) << why(q, 0);
  Plan alone = plan(p);
  alone.experts.replicas = 2;
  EXPECT_NE(why(alone, 0).find("one expert rank"), std::string::npos) << why(alone, 0);
  EXPECT_NE(why(plan(p), 3).find("--rebalance-every"), std::string::npos);
}

TEST(Rebalance, TakesNoPlacementThatDoesNotFit) {
  Problem p = problem(shrunk(shipped(qwen), 1), lora(6));
  Plan q = on_ranks(p, {.ep = 2, .dp_replicate = 2}, 1);
  placed_by_load(ExpertPlacement::balanced, 0)(p, q);
  run_ranks(2, [&](Communicator& c) {
    const auto backend = cpu_backend(CpuStorage::wide);
    Trainer t(p, q, *backend, curve_options(0), &c);
    const std::vector<std::int64_t> own = t.placement();
    for (const std::vector<std::int64_t>& words :
         std::vector<std::vector<std::int64_t>>{{0},
                                                {1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7},
                                                {0, 7, 0, 0, 1, 2, 3, 4, 5, 6},
                                                {0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 6},
                                                {0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 8},
                                                {0, 8, 3, 0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1}})
      EXPECT_FALSE(t.place(words));
    EXPECT_EQ(t.placement(), own);
  });
}

}  // namespace
}  // namespace moeplan
