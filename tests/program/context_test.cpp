/// Tensor and context parallelism in lowered blocks: what is exchanged, in bytes one can check by head.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "sim/program/architectures/architecture.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

Problem problem_of(const std::string& file, std::int64_t sequence = 8192) {
  Problem p;
  p.model = import_model_file(std::filesystem::path(MOEPLAN_SOURCE "/configs/models") / file);
  p.workload.sequence_length = sequence;
  return p;
}

Plan plan_of(const Problem& p, Parallelism parallelism, ContextExchange exchange = ContextExchange::ring, Recompute recompute = Recompute::none) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.context_exchange = exchange;
  plan.recompute = recompute;
  plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  return plan;
}

Block layer(const Problem& p, const Plan& plan, std::int32_t index) { return lower_slot(p, plan, outline(p.model, p.workload), index, 1.0); }

std::vector<CommCall> calls(const std::vector<BlockNode>& nodes, Collective collective, Group group) {
  std::vector<CommCall> out;
  for (const BlockNode& n : nodes)
    if (const auto* c = std::get_if<CommCall>(&n.call); c && c->collective == collective && c->group == group) out.push_back(*c);
  return out;
}

double attention_flops(const std::vector<BlockNode>& nodes) {
  double sum = 0;
  for (const BlockNode& n : nodes)
    if (const auto* op = std::get_if<OpCall>(&n.call); op && kind(op->op) == "attention") sum += flops(op->op, op->pass, op->wants).value;
  return sum;
}

constexpr const char* kQwen = "qwen/qwen3-30b-a3b.json";   // 32 query heads, 4 key-value heads of 128

// 2048 tokens a rank x (4 + 4) heads x 128 x 2 bytes = 4 MiB of keys and values; each passes three ranks. Backward they pass again, and
// their gradients pass all four ranks, home included.
TEST(Ring, KeysPassAllOtherRanksAndTheirGradientsComeHome) {
  const Problem p = problem_of(kQwen);
  const Block b = layer(p, plan_of(p, {.cp = 4}), 1);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  const auto there = calls(b.forward, Collective::send_receive, Group::context), back = calls(b.backward, Collective::send_receive, Group::context);
  ASSERT_EQ(there.size(), 3u);
  ASSERT_EQ(back.size(), 7u);
  for (const auto& list : {there, back})
    for (const CommCall& c : list) EXPECT_EQ(c.payload.value, 4 << 20);
}

// Early and late runs paired: four ranks do exactly the causal work of one, each the same.
TEST(Ring, RanksShareTheCausalWorkEvenly) {
  const Problem p = problem_of(kQwen);
  const Block whole = layer(p, plan_of(p, {}), 1), part = layer(p, plan_of(p, {.cp = 4}), 1);
  EXPECT_DOUBLE_EQ(4 * attention_flops(part.forward), attention_flops(whole.forward));
  EXPECT_DOUBLE_EQ(4 * attention_flops(part.backward), attention_flops(whole.backward));
}

// Beside its own a rank holds one part that is worked on and one that arrives: at most two parts more than without a ring.
TEST(Ring, HoldsTwoPartsOfTheKeysBesideItsOwn) {
  const Problem p = problem_of(kQwen);
  const std::int64_t two = block_memory(layer(p, plan_of(p, {.cp = 2}), 1)).forward.peak().value;
  Problem twice = problem_of(kQwen, 16384), eight = problem_of(kQwen, 32768);   // the same tokens a rank
  const std::int64_t four = block_memory(layer(twice, plan_of(twice, {.cp = 4}), 1)).forward.peak().value;
  EXPECT_LE(four - two, 8 << 20);
  EXPECT_EQ(block_memory(layer(eight, plan_of(eight, {.cp = 8}), 1)).forward.peak().value, four);
}

// q and y: 2048 x 32 x 128 x 2 bytes = 16 MiB of buffer each; k and v 2 MiB each. Then 8 query heads over whole sequences.
TEST(AllToAll, ExchangesHeadsForTokens) {
  const Problem p = problem_of(kQwen);
  const Block b = layer(p, plan_of(p, {.cp = 4}, ContextExchange::all_to_all), 1);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  std::vector<std::int64_t> bytes;
  for (const CommCall& c : calls(b.forward, Collective::all_to_all, Group::context)) bytes.push_back(c.payload.value >> 20);
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{16, 2, 2, 16}));
  EXPECT_EQ(calls(b.backward, Collective::all_to_all, Group::context).size(), 4u);
  for (const BlockNode& n : b.forward)
    if (const auto* op = std::get_if<OpCall>(&n.call); op && kind(op->op) == "attention") {
      const auto& call = std::get<op::Attention>(op->op);
      EXPECT_EQ(call.tokens, 8192);
      EXPECT_EQ(call.heads, 8);
      EXPECT_EQ(call.kv_heads, 1);
    }
}

// A window of 128 reads 127 rows before each of the two runs: 2 x 127 x (8 + 8) heads x 64 x 2 bytes; no ring.
TEST(Window, ReadsTheRowsBeforeItsRunsOnly) {
  const Problem p = problem_of("gpt-oss/gpt-oss-20b.json");
  const Block b = layer(p, plan_of(p, {.cp = 2}), 0);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  const auto there = calls(b.forward, Collective::send_receive, Group::context), back = calls(b.backward, Collective::send_receive, Group::context);
  ASSERT_EQ(there.size(), 1u);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(there.front().payload.value, 2 * 127 * 16 * 64 * 2);
}

// 32 heads x 128 x 128 floats = 2 MiB of state, as much of transition. Two runs a rank beside ring attention, one beside exchanged heads.
TEST(States, OfKdaPassAsAffineMaps) {
  const Problem p = problem_of("kimi/kimi-linear-48b-a3b.json");
  Plan plan = plan_of(p, {.cp = 4});
  Block b = layer(p, plan, 1);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  auto there = calls(b.forward, Collective::state_scan, Group::context);
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there.front().payload.value, 2 * (4 << 20));
  EXPECT_EQ(there.front().rows, 2);
  EXPECT_EQ(calls(b.backward, Collective::state_scan, Group::context).size(), 1u);
  plan.context_exchange = ContextExchange::all_to_all;
  plan.state_passing = StatePassing::chain;
  b = layer(p, plan, 1);
  there = calls(b.forward, Collective::state_chain, Group::context);
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there.front().payload.value, 2 << 20);   // the state alone
}

// Mamba-2: a state of heads x head size x state size, and one decay a head.
TEST(States, OfMamba2HaveOneDecayAHead) {
  const Mamba2Mixer m{.heads = 128, .head_dim = 64, .groups = 1, .state = 128};
  EXPECT_EQ(state_floats(m, 2).state, 64 * 64 * 128);
  EXPECT_EQ(state_floats(m, 2).transition, 64);
}

// Index keys of 128 columns and latent keys of 576, whole sequences on every rank; gradients of the latter are scattered back.
TEST(Dsa, GathersIndexKeysAndLatentKeys) {
  const Problem p = problem_of("deepseek/deepseek-v3.2.json");
  const Block b = layer(p, plan_of(p, {.cp = 4}), 5);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  std::vector<std::int64_t> bytes;
  for (const CommCall& c : calls(b.forward, Collective::all_gather, Group::context)) bytes.push_back(c.payload.value);
  EXPECT_EQ(bytes, (std::vector<std::int64_t>{8192 * 128 * 2, 8192 * 576 * 2}));
  const auto back = calls(b.backward, Collective::reduce_scatter, Group::context);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back.front().payload.value, 8192 * 576 * 2);
}

// One key-value head for eight tensor ranks: whole on each, its gradient summed over them; the queries' heads are dealt out.
TEST(Tensor, TooFewKeyHeadsAreHeldByEveryRank) {
  Problem p = problem_of("step/step-3.json");
  p.workload.attention = {Training::full};
  const Block b = layer(p, plan_of(p, {.tp = 8}), 10);
  EXPECT_EQ(verify(b), std::vector<std::string>{});
  const auto weight = [&](const std::string& name) { return *std::find_if(b.weights.begin(), b.weights.end(), [&](const Weight& w) { return w.name == name; }); };
  const Weight k = weight("self_attn.k_proj.weight"), q = weight("self_attn.wq.weight");
  EXPECT_EQ(k.shape[0], k.full_shape[0]);
  EXPECT_EQ(q.shape[0] * 8, q.full_shape[0]);
  Plan one = plan_of(p, {.tp = 8});
  EXPECT_GE(slot_sharding(b, p, one).tensor_reduce.value, 4 * k.shape.elements());
}

// Mamba-2 of one group at two tensor ranks: heads are dealt out, the group's B and C are on both.
TEST(Tensor, AStateGroupIsHeldByTheRanksThatShareIt) {
  const Problem p = problem_of("granite/granite-4.0-h-small.json", 4096);
  const Block whole = layer(p, plan_of(p, {}), 0), half = layer(p, plan_of(p, {.tp = 2}), 0);
  EXPECT_EQ(verify(half), std::vector<std::string>{});
  const auto conv = [](const Block& b) {
    return std::find_if(b.weights.begin(), b.weights.end(), [](const Weight& w) { return w.name.find("conv1d.weight") != std::string::npos; })->shape[0];
  };
  EXPECT_EQ(conv(whole), 128 * 64 + 2 * 128);
  EXPECT_EQ(conv(half), 64 * 64 + 2 * 128);
}

// Each tensor rank holds half of the vocabulary, of embedding and head alike.
TEST(Tensor, CutsTheVocabulary) {
  const Problem p = problem_of(kQwen, 4096);
  const Plan plan = plan_of(p, {.tp = 2});
  const auto layers = static_cast<std::int32_t>(p.model.layers.size());
  for (const std::int32_t slot : {-1, layers}) {
    const Block b = layer(p, plan, slot);
    EXPECT_EQ(verify(b), std::vector<std::string>{});
    EXPECT_TRUE(std::any_of(b.weights.begin(), b.weights.end(), [&](const Weight& w) { return w.full_shape[0] == p.model.vocabulary && w.shape[0] * 2 == p.model.vocabulary; })) << slot;
  }
}

bool divides(const Problem& p, int tp) {
  const auto ok = [&](std::int64_t n) { return n % tp == 0; };
  for (const LayerSpec& l : p.model.layers)
    for (const Sublayer& s : l.sublayers) {
      if (const auto* a = std::get_if<GqaAttention>(&s.mixer); a && (!ok(a->heads) || !(ok(a->kv_heads) || a->kv_heads == 1))) return false;
      if (const auto* f = std::get_if<DenseFfn>(&s.mixer); f && !ok(f->intermediate)) return false;
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer); f && !ok(f->shared_intermediate)) return false;
    }
  return true;
}

bool few_key_heads(const Problem& p) {
  return std::any_of(p.model.layers.begin(), p.model.layers.end(), [](const LayerSpec& l) {
    return std::any_of(l.sublayers.begin(), l.sublayers.end(), [](const Sublayer& s) { return std::holds_alternative<GqaAttention>(s.mixer) && std::get<GqaAttention>(s.mixer).kv_heads == 1; });
  });
}

// Every shipped model on two tensor and two context ranks, in every recompute mode: sound blocks.
TEST(Lower, EveryShippedModelIsSoundOnTensorAndContextRanks) {
  int lowered = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(MOEPLAN_SOURCE "/configs/models")) {
    if (e.path().extension() != ".json" || e.path().filename() == "INDEX.json") continue;
    Problem p;
    p.model = import_model_file(e.path());
    p.workload.sequence_length = 4096;
    if (!divides(p, 2)) continue;
    const ModelOutline model = outline(p.model, p.workload);
    for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full})
      for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::all_to_all}) {
        if (exchange == ContextExchange::all_to_all && few_key_heads(p)) continue;
        const Plan plan = plan_of(p, {.tp = exchange == ContextExchange::ring ? 2 : 1, .cp = 2}, exchange, r);
        std::string last;
        for (std::size_t l = 0; l < model.kinds.size(); ++l) {
          if (model.kinds[l] == last) continue;
          last = model.kinds[l];
          EXPECT_EQ(verify(lower_slot(p, plan, model, static_cast<std::int32_t>(l), 1.0)), std::vector<std::string>{}) << e.path().filename() << " layer " << l;
          ++lowered;
        }
      }
  }
  EXPECT_GT(lowered, 500);
}

}  // namespace
}  // namespace moeplan
