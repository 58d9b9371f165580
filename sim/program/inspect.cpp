#include "sim/program/inspect.hpp"

#include <map>

#include "sim/program/architectures/compose.hpp"
#include "sim/program/model_tensors.hpp"

namespace moeplan {
namespace {

Json layers(const ModelSpec& m) {
  Json out = Json::array();
  for (std::size_t l = 0; l < m.layers.size(); ++l) {
    std::int64_t experts = 0, top_k = 0;
    for (const Sublayer& s : m.layers[l].sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) experts = f->experts, top_k = f->top_k;
    out.push_back({{"index", l}, {"attention", attention_name(m.layers[l])}, {"ffn", ffn_name(m.layers[l])}, {"experts", experts}, {"top_k", top_k}});
  }
  return out;
}

/// Forward calls of one micro-batch on one unsharded rank, by operator, in the order they first appear.
Json operators(const ModelBlocks& blocks) {
  std::vector<std::string> order;
  std::map<std::string, std::int64_t> calls;
  const auto count = [&](const Graph& g, std::int64_t times) {
    for (const GraphNode& n : g.nodes)
      if (const Op* op = std::get_if<Op>(&n.call)) {
        const std::string name(kind(*op));
        if (!calls.contains(name)) order.push_back(name);
        calls[name] += times;
      }
  };
  count(blocks.embedding, 1);
  std::vector<std::int64_t> times(blocks.kinds.size(), 0);
  for (const std::size_t k : blocks.kind_of) ++times[k];
  for (std::size_t k = 0; k < blocks.kinds.size(); ++k) count(blocks.kinds[k], times[k]);
  count(blocks.head, 1);
  Json out = Json::array();
  for (const auto& name : order) {
    const Backends have = backends(name);
    out.push_back({{"name", name}, {"calls_per_micro_batch", calls[name]}, {"reference", have.reference}, {"cuda", have.cuda}});
  }
  return out;
}

Json tensor_list(const ModelSpec& m, const ModelBlocks& blocks) {
  Json out = Json::array();
  for (const ModelTensor& t : model_tensors(m, blocks))
    for (const FileTensor& f : file_tensors(t, m.stored.layout)) {
      Json entry{{"name", f.name}, {"shape", f.shape}, {"dtype", f.dtype}, {"count", f.count}};
      if (t.scope == Scope::mtp_copies) entry["copy"] = true;
      out.push_back(std::move(entry));
    }
  return out;
}

}  // namespace

Json inspect(const ModelSpec& m, bool tensors) {
  const ModelBlocks blocks = compose_model(m);
  const ParameterCounts c = count_parameters(m, blocks);
  Json out;
  out["name"] = m.name;
  out["architecture"] = m.architecture;
  out["total_parameters"] = c.total();
  out["activated_parameters"] = c.activated;
  out["activated_parameters_without_embedding"] = c.activated - c.input_embedding;
  out["elements"] = {{"main", c.main}, {"mtp", c.mtp}, {"mtp_copies", c.mtp_copies}, {"vision", c.vision}, {"tables", c.tables}};
  out["stored_bytes"] = c.stored_bytes;
  out["stored_tensors"] = c.stored_tensors;
  out["parameters"] = {{"embedding", c.embedding}, {"attention", c.attention}, {"router", c.router}, {"routed_experts", c.routed_experts},
                       {"shared_experts", c.shared_experts}, {"dense_ffn", c.dense_ffn}, {"norms", c.norms}, {"lm_head", c.lm_head},
                       {"vision", c.vision}, {"mtp", c.mtp}, {"other", c.other}};
  out["layers"] = layers(m);
  out["operators"] = operators(blocks);
  out["uncovered"] = m.uncovered;
  out["notes"] = m.notes;
  if (tensors) out["tensors"] = tensor_list(m, blocks);
  return out;
}

}  // namespace moeplan
