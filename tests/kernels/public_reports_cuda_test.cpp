/// \file
/// Faults that users of public kernels reported, held against the CUDA kernels: docs/fault_reports.md says which report is which test. Skipped where
/// there is no device, but for what the host refuses.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/kernels/attention_near.hpp"
#include "tests/kernels/call_data.hpp"
#include "tests/kernels/catalogue_cuda_routing.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan {
namespace {

using test::CallData;

bool read(const Operand& o) { return o.role == Role::input || o.role == Role::index || o.role == Role::weight; }

/// One call on the device and in the reference, over inputs rounded to their storage types. What the device writes is poisoned first; its backward reads what
/// the reference's forward left, but for a gradient of the loss that its own forward has made.
class BothSides {
 public:
  CallData<double> data, direction, want;   ///< operands, gradients that arrive, and gradients as the reference makes them

  explicit BothSides(const Op& op, std::uint64_t seed = 7) : data(test::random_inputs(op, seed)), direction(operands(op)), want(operands(op)), op_(op), list_(operands(op)) {
    std::mt19937_64 random(11);
    for (auto& buffer : direction.buffers)
      for (double& v : buffer) v = std::uniform_real_distribution<double>(-1, 1)(random);
    if (std::holds_alternative<op::CrossEntropy>(op)) products_.emplace();
  }
  std::vector<double>& operator[](std::string_view name) { return data.buffers[at(name)]; }

  void forward() {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (read(list_[i])) round(i, data.buffers[i]);
      data.views[i].data = data.buffers[i].data();
    }
    reference::forward<double>(op_, data.views);
    call();
  }
  /// The device's part alone.
  void call() {
    device_ = {};
    for (std::size_t i = 0; i < list_.size(); ++i) {
      device_.add(list_[i], true, 0);
      if (read(list_[i])) device_.memory[i]->upload(test::stored(list_[i].dtype, data.buffers[i], count(i)));
    }
    take_scratch(Pass::forward, {});
    cuda::forward(op_, device_.pointers(), scratch_.get(), nullptr, products());
    kernels::check(cudaDeviceSynchronize(), "a forward");
  }
  void backward() {
    gradients_ = {};
    auto views = want.views;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (!read(list_[i])) round(i, data.buffers[i]);
      round(i, direction.buffers[i]);
      const bool arrives = list_[i].role == Role::output, leaves = list_[i].role == Role::input || (list_[i].role == Role::weight && list_[i].trained);
      views[i].data = arrives ? direction.buffers[i].data() : leaves ? want.buffers[i].data() : nullptr;
      gradients_.add(list_[i], arrives || leaves, 0);
      if (arrives) gradients_.memory[i]->upload(test::stored(list_[i].dtype, direction.buffers[i], count(i)));
      if (!read(list_[i]) && list_[i].name != "dx") device_.memory[i]->upload(test::stored(list_[i].dtype, data.buffers[i], count(i)));
    }
    reference::backward<double>(op_, data.views, views);
    take_scratch(Pass::backward, {true, true});
    call_backward(nullptr);
    kernels::check(cudaDeviceSynchronize(), "a backward");
  }
  /// The device's part alone, queued.
  void call_backward(cudaStream_t stream) { cuda::backward(op_, device_.pointers(), gradients_.pointers(), scratch_.get(), stream, products()); }
  void poison_gradients() {
    for (std::size_t i = 0; i < list_.size(); ++i)
      if (gradients_.memory[i] && list_[i].role != Role::output) gradients_.memory[i]->poison();
    kernels::check(cudaDeviceSynchronize(), "poison gradients");
  }

  std::vector<double> on_device(std::string_view name) { return test::numbers(list_[at(name)].dtype, device_.memory[at(name)]->download()); }
  std::vector<double> gradient(std::string_view name) { return test::numbers(list_[at(name)].dtype, gradients_.memory[at(name)]->download()); }
  void expect_outputs(std::initializer_list<std::string_view> names, const std::string& what) {
    for (const auto name : names) test::expect_attention_near(test::head_columns(op_, list_[at(name)]), list_[at(name)], on_device(name), data.buffers[at(name)], what);
  }
  void expect_gradients(std::initializer_list<std::string_view> names, const std::string& what) {
    for (const auto name : names) test::expect_attention_near(test::head_columns(op_, list_[at(name)]), list_[at(name)], gradient(name), want.buffers[at(name)], what);
  }
  [[nodiscard]] std::size_t at(std::string_view name) const {
    for (std::size_t i = 0; i < list_.size(); ++i)
      if (list_[i].name == name) return i;
    throw std::logic_error("no operand " + std::string(name));
  }

 private:
  [[nodiscard]] std::size_t count(std::size_t i) const { return static_cast<std::size_t>(list_[i].shape.elements()); }
  [[nodiscard]] cuda::Products* products() { return products_ ? &*products_ : nullptr; }
  void round(std::size_t i, std::vector<double>& values) const {
    const auto rounded = test::numbers(list_[i].dtype, test::stored(list_[i].dtype, values, count(i)));
    std::copy(rounded.begin(), rounded.end(), values.begin());
  }
  void take_scratch(Pass pass, Wants wants) {
    scratch_ = kernels::DeviceBuffer(static_cast<std::size_t>(cuda::workspace(op_, pass, wants).value));
    scratch_.fill(0xff);
  }

  Op op_;
  Operands list_;
  std::optional<cuda::Products> products_;
  test::DeviceCall device_, gradients_;
  kernels::DeviceBuffer scratch_;
};

class PublicReportsCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

// Reports 18 and 22 (cudnn-frontend 676, 785; Megatron-LM 6910, 7434): padded rows, rows without keys, ids that name no key, huge sinks; the same in a
// recorded graph.
TEST_F(PublicReportsCuda, RowsWithoutKeysHaveNoOutputAndNoGradientWhateverTheSinks) {
  for (const bool latent : {true, false}) {
    const op::SparseAttention op{.tokens = 70, .sequence_length = 70, .heads = 5, .d_qk = 64, .d_v = 32, .topk = 6, .latent = latent, .sinks = true, .training = Training::full};
    BothSides call(op);
    auto& indices = call["indices"];
    for (std::size_t t = 0; t < 70; ++t)
      for (std::size_t i = 0; i < 6; ++i) {
        double& index = indices[6 * t + i];
        if (t % 9 == 3) index = -1;
        else if (i == 5) index = t % 2 == 0 ? 1 << 20 : 70;   // names no key
        else if ((t + i) % 4 == 1) index = -1;
      }
    call["sinks"] = {1e4, -1e4, 0, 60, -60};
    call.forward();
    call.expect_outputs({"y"}, latent ? "latent " : "own values ");
    call.backward();
    if (latent) call.expect_gradients({"q", "kv"}, "latent ");
    else call.expect_gradients({"q", "kv", "v"}, "own values ");
    const auto dsinks = call.gradient("sinks");
    for (std::size_t h = 0; h < 5; ++h) EXPECT_NEAR(dsinks[h], call.want.buffers[call.at("sinks")][h], 1e-2 * std::abs(call.want.buffers[call.at("sinks")][h]) + 1e-3) << "head " << h;
    const auto y = call.on_device("y"), dq = call.gradient("q");
    for (std::size_t t = 3; t < 70; t += 9) {
      for (std::size_t c = 0; c < 5 * 32; ++c) ASSERT_EQ(y[t * 5 * 32 + c], 0) << "row " << t;
      for (std::size_t c = 0; c < 5 * 64; ++c) ASSERT_EQ(dq[t * 5 * 64 + c], 0) << "row " << t;
    }
    const auto once = call.gradient("kv");
    const kernels::Stream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    kernels::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin to record");
    call.call_backward(stream.get());
    kernels::check(cudaStreamEndCapture(stream.get(), &graph), "record");
    kernels::check(cudaGraphInstantiate(&exec, graph, 0), "make ready");
    for (int replay = 0; replay < 3; ++replay) {
      call.poison_gradients();
      kernels::check(cudaGraphLaunch(exec, stream.get()), "replay");
      stream.synchronize();
      EXPECT_EQ(call.gradient("kv"), once) << "replay " << replay;
    }
    (void)cudaGraphExecDestroy(exec), (void)cudaGraphDestroy(graph);
  }
}

// Report 24 (sglang 31115): plateaus of equal scores, and rows with fewer positive scores than places. Small whole numbers: no score is rounded.
TEST_F(PublicReportsCuda, EqualScoresSelectTheLowestKeysOnEveryReplay) {
  const op::Indexer op{.tokens = 700, .sequence_length = 700, .heads = 2, .dim = 8, .topk = 64};
  for (const int kind : {0, 1, 2}) {   // all zero; all equal; three levels, few of the highest
    BothSides call(op);
    for (double& v : call["q"]) v = kind == 0 ? 0 : 1;
    for (double& v : call["head_weights"]) v = 1;
    auto& k = call["k"];
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = kind == 1 ? 1 : i / 8 % 97 == 5 ? 2 : i / 8 % 11 == 3 ? 1 : -1;
    call.forward();
    const auto want = call["indices"];
    EXPECT_EQ(call.on_device("indices"), want) << "kind " << kind;
    for (int replay = 0; replay < std::min(25, test::replays()); ++replay) {
      call.call();
      ASSERT_EQ(call.on_device("indices"), want) << "kind " << kind << " replay " << replay;
    }
  }
}

// Reports 25 and 26 (sglang 24654, aiter 4415, vllm-ascend 15053): what a query selects and attends to does not depend on which queries are in its call.
TEST_F(PublicReportsCuda, AQueryHasTheSameBitsInAnyCall) {
  constexpr std::int64_t tokens = 300, topk = 40, heads = 4, dim = 32, d_qk = 64, d_v = 48;
  BothSides select(op::Indexer{.tokens = tokens, .sequence_length = tokens, .heads = heads, .dim = dim, .topk = topk});
  BothSides attend(op::SparseAttention{.tokens = tokens, .sequence_length = tokens, .heads = heads, .d_qk = d_qk, .d_v = d_v, .topk = topk});
  select.forward();
  attend["indices"] = select.on_device("indices");
  attend.forward();
  const auto tail = [](const std::vector<double>& from, std::int64_t rows, std::int64_t width) { return std::vector<double>(from.end() - rows * width, from.end()); };
  for (const std::int64_t rows : {1, 77, 256}) {
    BothSides part(op::Indexer{.tokens = rows, .sequence_length = tokens, .heads = heads, .dim = dim, .topk = topk, .kv_tokens = tokens});
    part["q"] = tail(select["q"], rows, heads * dim), part["head_weights"] = tail(select["head_weights"], rows, heads), part["k"] = select["k"];
    part.forward();
    EXPECT_EQ(part.on_device("indices"), tail(select.on_device("indices"), rows, topk)) << rows;
    BothSides some(op::SparseAttention{.tokens = rows, .sequence_length = tokens, .heads = heads, .d_qk = d_qk, .d_v = d_v, .topk = topk, .kv_tokens = tokens});
    some["q"] = tail(attend["q"], rows, heads * d_qk), some["kv"] = attend["kv"], some["indices"] = tail(attend["indices"], rows, topk);
    some.forward();
    EXPECT_EQ(some.on_device("y"), tail(attend.on_device("y"), rows, heads * d_v)) << rows;
  }
}

// Report 42 (flash-attention 2883): head counts other than 64 and 128.
TEST_F(PublicReportsCuda, EveryCountOfHeadsFrom1To128IsTaken) {
  for (std::int64_t heads = 1; heads <= 128; heads += heads < 8 || heads % 32 > 29 || heads % 32 < 2 ? 1 : 7) {
    const std::string what = std::to_string(heads) + " heads ";
    BothSides sparse(op::SparseAttention{.tokens = 3, .sequence_length = 3, .heads = heads, .d_qk = 40, .d_v = 24, .topk = 3});
    sparse["indices"] = {0, -1, -1, 0, 1, -1, 0, 1, 2};
    sparse.forward(), sparse.backward();
    sparse.expect_outputs({"y"}, what), sparse.expect_gradients({"q", "kv"}, what);
    BothSides dense(op::Attention{.tokens = 70, .sequence_length = 70, .heads = heads, .kv_heads = 1, .d_qk = 64, .d_v = 64});
    dense.forward(), dense.backward();
    dense.expect_outputs({"y"}, what), dense.expect_gradients({"q", "k", "v"}, what);
    if (HasFailure()) return;
  }
}

// Report 39 (Liger 512, 827; Megatron-LM 2206): the gradient of the input at a vocabulary of 262,144 is no worse than what torch's chain of bf16 logits,
// an fp32 softmax and bf16 gradients leaves.
TEST_F(PublicReportsCuda, TheLossOverAQuarterMillionWordsIsAsExactAsBf16LogitsAre) {
  constexpr std::int64_t tokens = 6, hidden = 64, words = 262144;
  for (const bool fused : {true, false}) {
    BothSides call(op::CrossEntropy{.tokens = tokens, .hidden = hidden, .vocabulary = words, .fused_gradient = fused});
    call.forward();
    EXPECT_NEAR(call.on_device("loss")[0], call["loss"][0], 1e-4 * call["loss"][0]) << fused;
    call.direction.buffers[call.at("loss")][0] = 1;
    call.backward();
    const auto bf16 = [](double v) { return static_cast<double>(__bfloat162float(__float2bfloat16(static_cast<float>(v)))); };
    const auto &x = call["x"], &w = call["w"], &labels = call["labels"];
    double labelled = 0;
    for (const double label : labels) labelled += label >= 0;
    std::vector<double> torch(static_cast<std::size_t>(tokens * hidden));
    std::vector<double> logits(static_cast<std::size_t>(words));
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (labels[static_cast<std::size_t>(t)] < 0) continue;
      double most = -1e30, sum = 0;
      for (std::int64_t v = 0; v < words; ++v) {
        double dot = 0;
        for (std::int64_t h = 0; h < hidden; ++h) dot += x[static_cast<std::size_t>(t * hidden + h)] * w[static_cast<std::size_t>(v * hidden + h)];
        logits[static_cast<std::size_t>(v)] = bf16(dot), most = std::max(most, bf16(dot));
      }
      for (const double z : logits) sum += std::exp(z - most);
      for (std::int64_t v = 0; v < words; ++v) {
        const double d = bf16((std::exp(logits[static_cast<std::size_t>(v)] - most) / sum - (static_cast<double>(v) == labels[static_cast<std::size_t>(t)])) / labelled);
        for (std::int64_t h = 0; h < hidden; ++h) torch[static_cast<std::size_t>(t * hidden + h)] += d * w[static_cast<std::size_t>(v * hidden + h)];
      }
    }
    for (double& v : torch) v = bf16(v);
    const auto& exact = call.want.buffers[call.at("x")];
    const double theirs = test::relative_norm(torch, exact, torch.size()), ours = test::relative_norm(call.gradient("x"), exact, torch.size());
    EXPECT_LE(ours, 1.2 * theirs) << (fused ? "made by the forward" : "made again");
  }
}

// Report 40 (mlx-lm 1355): every label ignored.
TEST_F(PublicReportsCuda, ALossWithoutLabelsIsZeroAndSoAreItsGradients) {
  for (const bool fused : {true, false}) {
    BothSides call(op::CrossEntropy{.tokens = 33, .hidden = 64, .vocabulary = 3000, .fused_gradient = fused});
    call["labels"].assign(33, -100);
    call.forward();
    EXPECT_EQ(call.on_device("loss")[0], 0);
    call.backward();
    for (const double v : call.gradient("x")) ASSERT_EQ(v, 0);
  }
}

// Reports 4 and 33 (fla 639, transformers 48644, pytorch 150374): widths outside of the contract are refused on the host, with the numbers.
TEST(PublicReportsRefused, WidthsThatKernelsDoNotHaveAreNamed) {
  EXPECT_NE(cuda::refusal(op::Kda{.tokens = 64, .sequence_length = 64, .heads = 1, .head_dim = 512}).find("512"), std::string::npos);
  EXPECT_NE(cuda::refusal(op::GatedDeltaNet{.tokens = 64, .sequence_length = 64, .k_heads = 1, .v_heads = 1, .d_k = 128, .d_v = 512}).find("128 and values of 512"), std::string::npos);
  EXPECT_NE(cuda::refusal(op::GroupedLinear{.rows = 8, .experts = 2, .in = 12, .out = 16}).find("16 x 12"), std::string::npos);
}

}  // namespace
}  // namespace moeplan
