/// Logits, loss and every LoRA gradient of tiny models equal those of transformers and PEFT (tests/vectors/make_model_vectors.py made
/// them). The weights come in through the checkpoint reader, the pairs through the adapter reader: both are held to stock files here.

#include <gtest/gtest.h>

#include <cmath>

#include "core/json.hpp"
#include "executor/adapter/modules.hpp"
#include "executor/adapter/peft.hpp"
#include "executor/weights/load.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;
namespace fs = std::filesystem;

std::vector<std::string> models() {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(source + "/tests/vectors/models")) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

class Vectors : public testing::TestWithParam<std::string> {};

TEST_P(Vectors, EqualThePublicImplementation) {
  const fs::path folder = fs::path(source) / "tests/vectors/models" / GetParam();
  const TensorFiles expected(folder, "vectors.safetensors");
  const Json adapter = load_json(folder / "adapter_config.json");
  const std::int64_t rows = expected.find("input_ids")->shape[0], length = expected.find("input_ids")->shape[1];
  Workload w;
  w.sequence_length = length;
  const Tuning pair{.training = Training::lora, .rank = adapter.at("r").get<std::int64_t>(), .alpha = adapter.at("lora_alpha").get<double>()};
  w.attention = pair;
  const ModelSpec model = import_model_file(folder);
  for (const LayerSpec& layer : model.layers)
    for (const Sublayer& s : layer.sublayers) {
      if (std::holds_alternative<DenseFfn>(s.mixer)) w.dense = pair;
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) {
        w.experts = pair;
        if (f->shared_intermediate > 0) w.shared = pair;
      }
    }
  if (w.dense.rank == 0) w.dense = {};
  const Problem p = problem(model, w);
  const Plan q = plan(p, rows, 1, Recompute::selective);
  TinyRun run(p, q, cpu_backend(CpuStorage::wide));
  load_weights(TensorFiles(folder, "model.safetensors"), p.model, run.trainer->parameters(), *run.backend);
  load_adapter(folder, p, run.trainer->parameters(), *run.backend);

  Batch b;
  const auto ids = expected.floats("input_ids", 0, rows * length), labels = expected.floats("labels", 0, rows * length);
  for (std::int64_t t = 0; t < rows * length; ++t) {
    b.tokens.push_back(static_cast<std::int32_t>(ids[static_cast<std::size_t>(t)]));
    b.labels.push_back((t + 1) % length == 0 ? -100 : static_cast<std::int32_t>(labels[static_cast<std::size_t>(t + 1)]));
  }
  // The program never makes the logits: head input times head, here.
  std::vector<float> logits;
  run.trainer->walk().observe([&](const CallRecord& r) {
    const OpCall& call = std::get<OpCall>(r.node.call);
    const auto* head = std::get_if<op::CrossEntropy>(&call.op);
    if (!head || call.pass != Pass::forward) return;
    std::vector<float> x(static_cast<std::size_t>(head->tokens * head->hidden)), m(static_cast<std::size_t>(head->vocabulary * head->hidden));
    run.backend->read(r.operands[0], x);
    run.backend->read(r.operands[2], m);
    std::vector<float> bias(static_cast<std::size_t>(head->vocabulary), 0);
    const Operands contract = head->operands();
    for (std::size_t o = 0; o < contract.size(); ++o)
      if (contract[o].name == "b") run.backend->read(r.operands[o], bias);
    for (std::int64_t t = 0; t < head->tokens; ++t)
      for (std::int64_t v = 0; v < head->vocabulary; ++v) {
        double z = bias[static_cast<std::size_t>(v)];
        for (std::int64_t c = 0; c < head->hidden; ++c) z += static_cast<double>(x[static_cast<std::size_t>(t * head->hidden + c)]) * static_cast<double>(m[static_cast<std::size_t>(v * head->hidden + c)]);
        logits.push_back(static_cast<float>(z));
      }
  });
  const float loss = run.trainer->differentiate(b);
  const auto want = expected.floats("logits", 0, static_cast<std::int64_t>(logits.size()));
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(logits[i] - want[i]))), scale = std::max(scale, std::abs(static_cast<double>(want[i])));
  EXPECT_LT(worst, 2e-4 * scale) << "logits, largest " << scale;
  EXPECT_NEAR(loss, expected.floats("loss", 0, 1)[0], 2e-5);

  // Gradients under the names that PEFT has. Gate and up share A here: its gradient is the sum of theirs there.
  const AdapterFiles ours = export_adapter(run.trainer->parameters(), p, [&](const Parameter& each) {
    std::vector<float> g(static_cast<std::size_t>(each.shape.elements()));
    run.backend->read(each.gradient_view(), g);
    return g;
  }, AdapterDialect::param_wrapper);
  std::size_t compared = 0;
  for (const NamedTensor& t : ours.tensors) {
    const std::string name = "grad." + t.name;
    ASSERT_TRUE(expected.find(name)) << name;
    std::vector<float> g = expected.floats(name, 0, static_cast<std::int64_t>(t.values.size()));
    for (const auto& [mine, other] : {std::pair{".gate_proj.lora_A", ".up_proj.lora_A"}, std::pair{".up_proj.lora_A", ".gate_proj.lora_A"}})
      if (const auto at = name.find(mine); at != std::string::npos) {
        std::string partner = name;
        partner.replace(at, std::string(mine).size(), other);
        if (!expected.find(partner)) continue;
        const auto h = expected.floats(partner, 0, static_cast<std::int64_t>(t.values.size()));
        for (std::size_t i = 0; i < g.size(); ++i) g[i] += h[i];
      }
    double most = 1e-6, difference = 0;
    for (std::size_t i = 0; i < g.size(); ++i) most = std::max(most, std::abs(static_cast<double>(g[i]))), difference = std::max(difference, std::abs(static_cast<double>(g[i] - t.values[i])));
    EXPECT_LT(difference, 3e-3 * most + 2e-6) << t.name;
    ++compared;
  }
  std::size_t there = 0;
  for (const std::string& name : expected.names()) there += name.starts_with("grad.");
  EXPECT_EQ(compared, there) << "every pair of theirs is one of ours";
}

INSTANTIATE_TEST_SUITE_P(Models, Vectors, testing::ValuesIn(models()), [](const auto& each) { return each.param; });

}  // namespace
}  // namespace moeplan
