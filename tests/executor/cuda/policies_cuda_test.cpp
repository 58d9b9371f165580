/// \file
/// What a step does besides its forward and backward, on a device against the CPU: resume, balancing loss, capacity and
/// what becomes of dropped copies, packed documents, clipping. Skipped where there is no device.

#include <gtest/gtest.h>

#include <cmath>

#include "executor/checkpoint/checkpoint.hpp"
#include "executor/cuda/backend.hpp"
#include "tests/executor/cuda/sized.hpp"
#include "tests/executor/run/scratch.hpp"

namespace moeplan {
namespace {

using namespace test;

class CudaPolicies : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

std::vector<float> read(TinyRun& run, const Parameter& p, const Backend::Memory& memory) {
  std::vector<float> v(static_cast<std::size_t>(p.shape.elements()));
  run.backend->read({memory.get(), DType::f32, p.shape}, v);
  return v;
}

std::vector<float> state(TinyRun& run) {
  std::vector<float> out;
  run.backend->wait();
  for (const Parameter& p : run.trainer->parameters().all()) {
    if (!p.trained) continue;
    for (const Backend::Memory* memory : {&p.value, &p.first_moment, &p.second_moment}) {
      const auto v = read(run, p, *memory);
      out.insert(out.end(), v.begin(), v.end());
    }
  }
  return out;
}

double norm(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}
std::vector<float> difference(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

/// Documents of 17 and 31 tokens, and others, in rows of 48.
Batch packed(const Problem& p, const Plan& q, std::uint64_t seed) {
  Batch b = batch(p, q, seed);
  b.starts = {0, 17, 48};
  if (q.micro_batch == 2) b.starts = {0, 17, 48, 53, 96};
  for (std::size_t s = 1; s < b.starts.size(); ++s) b.labels[static_cast<std::size_t>(b.starts[s] - 1)] = -100;
  return b;
}

TEST_F(CudaPolicies, AResumedRunIsTheRunBitForBit) {
  for (const char* file :
       {"qwen/qwen3-30b-a3b.json", "nemotron/nemotron-3-nano-30b-a3b.json", "deepseek/deepseek-v3.2.json"})
    for (const bool everything : {false, true}) {
      TrainOptions options;
      options.steps = 8, options.learning_rate = 2e-3, options.walk.auxiliary = 0.01;
      const Problem p = problem(device_sized(file), everything ? full(48) : lora(48, 8));
      const Plan q = plan(p, 2, 1, Recompute::selective);
      const std::string print = run_fingerprint(p, q);
      const Scratch dir;
      TinyRun whole(p, q, cuda_backend(0), options), first(p, q, cuda_backend(0), options),
          second(p, q, cuda_backend(0), options);
      const auto train = [&](TinyRun& run, int from, int to) {
        double loss = 0;
        for (int s = from; s < to; ++s) loss = run.trainer->step({batch(p, q, static_cast<std::uint64_t>(s))}).loss;
        return loss;
      };
      const double last = train(whole, 0, 6);
      (void)train(first, 0, 3);  // the third is a recorded graph
      (void)save_checkpoint(dir.path(), print, {first.trainer->steps_done(), {}, 1}, first.trainer->parameters(),
                            *first.backend);
      const auto resumed = load_checkpoint(dir.path(), print, second.trainer->parameters(), *second.backend);
      ASSERT_TRUE(resumed);
      EXPECT_EQ(state(first), state(second)) << file;
      second.trainer->set_steps_done(resumed->progress.step);
      EXPECT_EQ(train(second, 3, 6), last) << file;
      EXPECT_EQ(state(whole), state(second)) << file;
    }
}

TEST_F(CudaPolicies, TheBalancingLossHasTheCpusValueAndGradient) {
  TrainOptions with;
  with.walk.auxiliary = 5;
  const Problem p = problem(device_sized("qwen/qwen3-30b-a3b.json"), full(48));
  const Plan q = plan(p, 2);
  const Batch b = batch(p, q, 3);
  const auto added = [&](auto backend) {  // to the routers' gradients, and the balance itself
    TinyRun plain(p, q, backend()), balanced(p, q, backend(), with);
    (void)plain.trainer->differentiate(b), (void)balanced.trainer->differentiate(b);
    std::vector<float> out;
    for (std::size_t i = 0; i < plain.trainer->parameters().all().size(); ++i) {
      const Parameter &a = plain.trainer->parameters().all()[i], &c = balanced.trainer->parameters().all()[i];
      if (!a.trained || a.name.find("mlp.gate.weight") == std::string::npos) continue;
      const auto d = difference(read(balanced, c, c.gradient), read(plain, a, a.gradient));
      out.insert(out.end(), d.begin(), d.end());
    }
    return std::pair{out, balanced.trainer->walk().routing().front().balance};
  };
  const auto [want, value] = added([] { return cpu_backend(CpuStorage::as_planned); });
  const auto [got, device] = added([] { return cuda_backend(0); });
  ASSERT_GT(norm(want), 0);
  EXPECT_LT(norm(difference(got, want)), 0.05 * norm(want));
  EXPECT_NEAR(device, value, 0.02 * value);
}

/// Where each choice of the first layer with experts stands among the permuted rows, -1 where it was dropped.
std::vector<float> permuted(TinyRun& run, const Batch& b) {
  std::vector<float> out;
  run.trainer->walk().observe([&](const CallRecord& r) {
    const OpCall& call = std::get<OpCall>(r.node.call);
    if (call.pass != Pass::forward || kind(call.op) != "permute" || !out.empty()) return;
    const Operands contract = operands(call.op);
    for (std::size_t o = 0; o < contract.size(); ++o) {
      if (contract[o].name != "row_map") continue;
      out.resize(static_cast<std::size_t>(contract[o].shape.elements()));
      run.backend->wait();
      run.backend->read(r.operands[o], out);
    }
  });
  (void)run.trainer->differentiate(b);
  run.trainer->walk().observe({});
  return out;
}
/// Choices that one drops and the other does not.
std::size_t dropped_apart(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += (a[i] < 0) != (b[i] < 0);
  return n;
}

TEST_F(CudaPolicies, CapacityDropsAndMovesWhatItDoesOnTheCpu) {
  const Problem p = problem(device_sized("qwen/qwen3-30b-a3b.json"), lora(48, 8));
  std::vector<float> by_position;
  for (const Overflow action : {Overflow::drop_position, Overflow::drop_probability, Overflow::reroute}) {
    Plan q = plan(p, 2);
    q.experts.capacity_factor = 1, q.experts.overflow = action;
    TrainOptions options;
    options.steps = 4, options.learning_rate = 2e-3;
    TinyRun cpu(p, q, cpu_backend(CpuStorage::as_planned), options), device(p, q, cuda_backend(0), options);
    // The same choices are dropped, but for ties that rounding decides otherwise: 2 of 100. By probability they are others than by position.
    const std::vector<float> on_cpu = permuted(cpu, batch(p, q, 8)), on_device = permuted(device, batch(p, q, 8));
    ASSERT_FALSE(on_cpu.empty());
    ASSERT_EQ(on_cpu.size(), on_device.size());
    EXPECT_LE(dropped_apart(on_cpu, on_device), on_cpu.size() / 50) << "of " << on_cpu.size();
    if (action == Overflow::drop_position) by_position = on_cpu;
    if (action == Overflow::drop_probability) {
      EXPECT_GT(dropped_apart(on_cpu, by_position), on_cpu.size() / 25) << "of " << on_cpu.size();
    }
    for (int s = 0; s < options.steps; ++s) {
      const StepReport want = cpu.trainer->step({batch(p, q, 8)}), got = device.trainer->step({batch(p, q, 8)});
      EXPECT_NEAR(got.loss, want.loss, 0.01 * want.loss) << "step " << s;
      EXPECT_NEAR(got.drop_rate, want.drop_rate, 0.02)
          << "step " << s;  // a tie that rounding decides otherwise moves a copy
      if (action != Overflow::reroute) {
        EXPECT_GT(got.drop_rate, 0);
      }
    }
  }
}

TEST_F(CudaPolicies, PackedDocumentsGiveTheCpusLossAndGradientsAndDoNotSeeEachOther) {
  for (const char* file : {"qwen/qwen3-next-80b-a3b.json", "kimi/kimi-k3.json", "nemotron/nemotron-3-nano-30b-a3b.json",
                           "deepseek/deepseek-v3.2.json", "gpt-oss/gpt-oss-20b.json", "jamba/jamba-v0.1.json", "minimax/minimax-m1-80k.json"}) {
    const Problem p = problem(device_sized(file), full(48));
    const Plan q = plan(p, 2);
    TinyRun cpu(p, q, cpu_backend(CpuStorage::as_planned)), device(p, q, cuda_backend(0));
    const std::vector<Batch> step{packed(p, q, 6)};
    const StepReport want = cpu.trainer->step(step), got = device.trainer->step(step);
    EXPECT_NEAR(got.loss, want.loss, 5e-3 * want.loss) << file;
    EXPECT_NEAR(got.gradient_norm, want.gradient_norm, 0.05 * want.gradient_norm) << file;
    Batch b = step.front();
    b.labels.assign(b.labels.size(), -100);
    b.labels[30] = 3;  // in the second document
    const float before = device.trainer->evaluate(b);
    for (std::size_t t = 0; t < 17; ++t) b.tokens[t] = (b.tokens[t] + 17) % 1000;
    EXPECT_EQ(device.trainer->evaluate(b), before) << file << ": the first document does not matter, to the bit";
    b.tokens[20] = (b.tokens[20] + 17) % 1000;
    EXPECT_NE(device.trainer->evaluate(b), before) << file << ": its own does";
  }
}

TEST_F(CudaPolicies, ClippingScalesGradientsAsOnTheCpu) {
  const Problem p = problem(device_sized("qwen/qwen3-30b-a3b.json"), full(48));
  const Plan q = plan(p, 2);
  const Batch b = batch(p, q, 4);
  TrainOptions free;
  free.clip = 0;
  const auto moments = [&](TinyRun& run) {
    std::vector<float> out;
    run.backend->wait();
    for (const Parameter& each : run.trainer->parameters().all()) {
      if (!each.trained) continue;
      const auto v = read(run, each, each.first_moment);
      out.insert(out.end(), v.begin(), v.end());
    }
    return out;
  };
  TinyRun plain(p, q, cuda_backend(0), free);
  const double whole = plain.trainer->step({b}).gradient_norm;
  TrainOptions clipped = free;
  clipped.clip = whole / 4;
  TinyRun device(p, q, cuda_backend(0), clipped), cpu(p, q, cpu_backend(CpuStorage::as_planned), clipped);
  EXPECT_EQ(device.trainer->step({b}).gradient_norm, whole) << "the norm is said before clipping";
  (void)cpu.trainer->step({b});
  const auto a = moments(device), c = moments(cpu), all = moments(plain);
  EXPECT_NEAR(norm(a), norm(all) / 4,
              1e-4 * norm(all));  // a moment is (1 - beta1) of the clipped gradient after one step
  EXPECT_NEAR(norm(a), norm(c), 0.02 * norm(c));
  EXPECT_LT(norm(difference(a, c)), 0.15 * norm(c));
}

}  // namespace
}  // namespace moeplan
