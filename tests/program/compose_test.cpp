/// Every block of every shipped model composes under every tuning and sharding (the builder asserts that shapes agree with contracts).

#include <gtest/gtest.h>

#include <set>

#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/architectures/compose.hpp"

namespace moeplan {
namespace {

const std::string source = MOEPLAN_SOURCE;

/// Composes the embedding, one layer of each kind and the head; calls `see` with each graph.
template <class F>
void each_block(const ModelSpec& m, const BlockContext& context, F&& see) {
  Stream first;
  Builder embedding("embedding", context);
  compose_embedding(embedding, m, first);
  stream_outputs(embedding, first);
  see(embedding.take());
  std::set<std::string> kinds;
  for (std::int64_t l = 0; l <= static_cast<std::int64_t>(m.layers.size()); ++l) {
    const bool head = l == static_cast<std::int64_t>(m.layers.size());
    if (!head && !kinds.insert(layer_kind(m, l)).second) continue;
    Builder b("block", context);
    Stream stream = stream_inputs(b, m, l);
    if (head) {
      compose_head(b, m, stream, 4);
    } else {
      compose_layer(b, m, m.layers[static_cast<std::size_t>(l)], stream);
      stream_outputs(b, stream);
    }
    see(b.take());
  }
}

std::vector<ModelSpec> shipped() {
  std::vector<ModelSpec> out;
  for (const Json& e : load_json(source + "/configs/models/INDEX.json")) out.push_back(import_model_file(source + "/configs/models/" + e.at("file").get<std::string>()));
  return out;
}

std::int64_t most_experts(const ModelSpec& m) {
  std::int64_t n = 0;
  for (const LayerSpec& layer : m.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) n = std::max(n, f->experts);
  return n;
}

Workload tuned(Tuning t) {
  Workload w;
  w.attention = w.dense = w.shared = w.experts = w.router = w.embedding = w.head = w.other = t;
  w.norm = t.training == Training::full ? t : Tuning{};
  return w;
}

TEST(Compose, every_model_composes_under_every_tuning_and_expert_parallelism) {
  for (const ModelSpec& m : shipped())
    for (const Tuning& t : {Tuning{}, Tuning{Training::lora, 8, 16}, Tuning{Training::lora, 8, 16, true}, Tuning{Training::full}}) {
      BlockContext c;
      c.tokens = c.sequence_length = 4096;
      c.workload = tuned(t);
      if (most_experts(m) % 4 == 0 && most_experts(m) > 0) c.ep = 4;
      each_block(m, c, [&](const Graph& g) {
        EXPECT_FALSE(g.nodes.empty());
        EXPECT_FALSE(g.outputs.empty());
        for (const Weight& w : g.weights) EXPECT_EQ(w.trained, !w.buffer && t.training != Training::frozen && (t.training == Training::full || w.adapter)) << m.name << " " << w.name;
      });
    }
}

TEST(Compose, a_sequence_of_one_token_composes_too) {
  for (const ModelSpec& m : shipped()) each_block(m, BlockContext{}, [&](const Graph& g) { EXPECT_FALSE(g.outputs.empty()) << m.name; });
}

TEST(Compose, weights_do_not_depend_on_the_sharding) {
  for (const ModelSpec& m : shipped()) {
    if (most_experts(m) == 0 || most_experts(m) % 8 != 0) continue;
    std::int64_t alone = 0, spread = 0;
    BlockContext c;
    c.tokens = c.sequence_length = 128;
    each_block(m, c, [&](const Graph& g) { for (const Weight& w : g.weights) alone += w.full_shape.elements(); });
    c.ep = 8;
    each_block(m, c, [&](const Graph& g) { for (const Weight& w : g.weights) spread += w.full_shape.elements(); });
    EXPECT_EQ(alone, spread) << m.name;
  }
}

TEST(Compose, latent_experts_halve_what_kimi_k3_exchanges) {
  const ModelSpec m = import_model_file(source + "/configs/models/kimi/kimi-k3.json");
  BlockContext c;
  c.tokens = c.sequence_length = 1024;
  c.ep = 8;
  Builder b("layer", c);
  Stream stream = stream_inputs(b, m, 1);
  EXPECT_EQ(stream.blocks.size(), 1u);
  compose_layer(b, m, m.layers[1], stream);
  const Graph g = b.take();
  int dispatches = 0;
  for (const GraphNode& n : g.nodes)
    if (const auto* call = std::get_if<CommCall>(&n.call); call && call->collective == Collective::dispatch) {
      ++dispatches;
      EXPECT_EQ(call->payload.value, 1024 * 16 * 3584 * 2);
      EXPECT_EQ(call->rows, 1024 * 16);
      EXPECT_EQ(call->experts, 896);
    }
  EXPECT_EQ(dispatches, 1);
}

TEST(Compose, shared_indices_and_stored_blocks_come_from_outside_the_block) {
  const ModelSpec glm = import_model_file(source + "/configs/models/glm/glm-5.2.json");
  BlockContext c;
  c.tokens = c.sequence_length = 4096;
  Builder owner("owner", c), reader("reader", c);
  Stream a = stream_inputs(owner, glm, 6), r = stream_inputs(reader, glm, 7);
  EXPECT_EQ(a.indices, -1);
  EXPECT_GE(r.indices, 0);
  compose_layer(owner, glm, glm.layers[6], a);
  compose_layer(reader, glm, glm.layers[7], r);
  stream_outputs(owner, a);
  stream_outputs(reader, r);
  EXPECT_EQ(owner.take().outputs.size(), 2u);
  EXPECT_EQ(reader.take().outputs.size(), 1u);

  const ModelSpec k3 = import_model_file(source + "/configs/models/kimi/kimi-k3.json");
  Builder head("head", c);
  EXPECT_EQ(stream_inputs(head, k3, 93).blocks.size(), 8u);
}

TEST(Compose, a_tied_head_names_the_embedding_and_no_tensor) {
  const ModelSpec m = import_model_file(source + "/configs/models/llama/llama-3.2-1b.json");
  Builder b("head", BlockContext{});
  Stream stream = stream_inputs(b, m, 16);
  compose_head(b, m, stream, 1);
  bool found = false;
  for (const Weight& w : b.take().weights)
    if (w.name == m.embedding_name) {
      found = true;
      EXPECT_TRUE(w.sources.empty());
    }
  EXPECT_TRUE(found);
}

TEST(Compose, the_loss_works_on_whole_tiles_and_no_fewer_than_two_thousand_tokens) {
  for (const auto& [tokens, pieces, each] : {std::array<std::int64_t, 3>{16384, 8, 2048}, {3584, 8, 2048}, {2560, 1, 2560}, {448, 8, 448}, {1, 8, 1}, {0, 8, 1}, {32768, 8, 4096}, {40000, 8, 5120}, {40000, 1, 40000}})
    EXPECT_EQ(loss_tokens(tokens, pieces), each) << tokens << " tokens in " << pieces;
}

}  // namespace
}  // namespace moeplan
