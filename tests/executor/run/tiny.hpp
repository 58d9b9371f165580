#pragma once
/// Small problems for the executor's tests: a shipped config shrunk to a few thousand weights, a plan on one rank, made-up tokens.

#include <random>

#include "core/json.hpp"
#include "executor/train/train.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan::test {

inline const std::string source = MOEPLAN_SOURCE;

/// The structure of a model with small numbers: the layers up to the first of each kind (at most `most`), every width a few.
inline ModelSpec shrunk(ModelSpec m, std::size_t most = 6) {
  const std::int64_t hidden = m.hidden;
  m.hidden = 32;
  m.vocabulary = 64;
  m.stored = {};
  if (m.learned_positions > 0) m.learned_positions = 64;
  m.mtp_layers.clear(), m.mtp_extra.clear(), m.mtp_copies.clear(), m.vision.clear();
  struct Shrink {
    std::int64_t hidden;
    void operator()(GqaAttention& a) const {
      a.heads = 4, a.kv_heads = a.kv_heads == 1 ? 1 : 2;
      a.rope.rotary_dim = a.rope.rotary_dim > 0 ? 4 : 0;
      a.head_dim = a.v_head_dim = 8;
      if (a.window) a.window = 3;
      if (a.index_topk > 0) a.index_heads = 2, a.index_dim = 4, a.index_block = 2, a.index_topk = 4;
      if (a.q_latent > 0) a.q_latent = 12;
    }
    void operator()(MlaAttention& a) const {
      a.heads = 2, a.q_lora = a.q_lora > 0 ? 12 : 0, a.kv_lora = 8, a.nope = 6, a.v = 5, a.rope_dim = a.rope_dim > 0 ? 4 : 0;
      if (a.indexer) a.indexer->heads = 2, a.indexer->dim = 6, a.indexer->topk = 4, a.indexer->key_pool = a.indexer->key_pool > 1 ? 2 : a.indexer->key_pool;
    }
    void operator()(KdaAttention& a) const { a.heads = 2, a.head_dim = 4, a.stored_a_log = a.stored_a_log > 0 ? 4 : 0; }
    void operator()(GdnAttention& a) const { a.k_heads = 2, a.v_heads = 4, a.k_dim = 4, a.v_dim = 6; }
    void operator()(Mamba2Mixer& a) const { a.heads = 4, a.head_dim = 4, a.groups = a.groups > 1 ? 2 : 1, a.state = 4; }
    void operator()(Mamba1Mixer& a) const { a.inner = 16, a.state = 4, a.dt_rank = 2; }
    void operator()(LightningAttention& a) const { a.heads = 4, a.head_dim = 4; }
    void operator()(CompressedAttention& a) const {
      a.heads = 4, a.head_dim = 8, a.q_lora = 12, a.rope_dim = 4, a.o_groups = 2, a.o_lora = 6, a.window = 4;
      if (a.index_topk > 0) a.index_heads = 2, a.index_dim = 4, a.index_topk = 2;
    }
    void operator()(DenseFfn& f) const { f.intermediate = 24; }
    void operator()(MoeFfn& f) const {
      f.experts = 8, f.top_k = std::min<std::int64_t>(f.top_k, 3), f.intermediate = 10, f.groups = f.groups > 1 ? 2 : 1, f.top_groups = std::min<std::int64_t>(f.top_groups, f.groups);
      f.latent = f.latent > 0 ? 16 : 0, f.shared_intermediate = f.shared_intermediate > 0 ? 12 : 0, f.zero_experts = f.zero_experts > 0 ? 2 : 0;
    }
  };
  std::vector<LayerSpec> layers;
  std::vector<LayerSpec> seen;
  for (LayerSpec layer : m.layers) {
    layer.extra.clear();
    for (Sublayer& s : layer.sublayers) std::visit(Shrink{hidden}, s.mixer);
    const bool fresh = std::find(seen.begin(), seen.end(), layer) == seen.end();
    if (fresh) seen.push_back(layer);
    if (fresh || layers.size() < 2) layers.push_back(std::move(layer));
    if (layers.size() == most) break;
  }
  m.layers = std::move(layers);
  return m;
}

inline ModelSpec shipped(const std::string& file) { return import_model_file(source + "/configs/models/" + file); }

inline Workload lora(std::int64_t length, std::int64_t rank = 2) {
  Workload w;
  w.sequence_length = length;
  const Tuning pair{.training = Training::lora, .rank = rank, .alpha = 2.0 * static_cast<double>(rank)};
  w.attention = w.dense = w.shared = w.experts = pair;
  return w;
}

inline Workload full(std::int64_t length) {
  Workload w;
  w.sequence_length = length;
  const Tuning all{.training = Training::full};
  w.attention = w.dense = w.shared = w.experts = w.router = w.embedding = w.head = w.norm = w.other = all;
  return w;
}

inline Problem problem(ModelSpec model, Workload workload) {
  Problem p;
  p.model_name = model.name;
  p.model = std::move(model);
  p.workload = std::move(workload);
  p.runtime.deduplicated_dispatch = false;
  return p;
}

inline Plan plan(const Problem& p, std::int64_t micro_batch = 1, std::int64_t micro_batches = 1, Recompute recompute = Recompute::none) {
  Plan out;
  out.micro_batch = micro_batch;
  out.micro_batches = micro_batches;
  out.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  out.recompute = recompute;
  return out;
}

inline Batch batch(const Problem& p, const Plan& q, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Batch b;
  for (std::int64_t t = 0; t < q.micro_batch * p.workload.sequence_length; ++t) b.tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(p.model.vocabulary)));
  for (std::size_t t = 0; t < b.tokens.size(); ++t) {
    const bool last = (t + 1) % static_cast<std::size_t>(p.workload.sequence_length) == 0;
    b.labels.push_back(last ? -100 : b.tokens[t + 1]);
  }
  return b;
}

/// Everything a run needs, together.
struct TinyRun {
  Problem problem;
  Plan plan;
  std::unique_ptr<Backend> backend;
  std::optional<Trainer> trainer;

  TinyRun(Problem p, Plan q, std::unique_ptr<Backend> b, const TrainOptions& options = {}) : problem(std::move(p)), plan(std::move(q)), backend(std::move(b)) {
    trainer.emplace(problem, plan, *backend, options);
    randomise(trainer->parameters(), options.seed, problem.model, *backend);
  }
};

}  // namespace moeplan::test
