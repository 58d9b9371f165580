/// \file
/// One typed test over every operator of the CUDA backend: each case, forward and backward, against the CPU reference in double on inputs
/// rounded to their storage types; under each of its routings; with aligned views and with shifted ones, which may be refused for that alone; nothing written beside the outputs; 50 replays equal to the bit.
/// Without a GPU each is skipped by its operator's name.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/arranged.hpp"
#include "kernels/cuda_workspace.hpp"
#include "kernels/quantise/rounding.hpp"
#include "tests/kernels/attention_near.hpp"
#include "tests/kernels/call_data.hpp"
#include "tests/kernels/catalogue_cuda_cases.hpp"
#include "tests/kernels/catalogue_cuda_routing.hpp"
#include "tests/kernels/cross_entropy_rounding.hpp"
#include "tests/kernels/device_call.hpp"
#include "tests/kernels/scan_cases.hpp"
#include "tests/kernels/selected_near.hpp"
#include "tests/kernels/stored_formats.hpp"

namespace moeplan {
namespace {

using test::CallData;
using test::DeviceCall;
using test::Raw;

std::vector<Op> cuda_cases() {
  std::vector<Op> out;
  const auto add = [&](const std::vector<Op>& more) {
    for (const Op& op : more)
      if (cuda::refusal(op).empty()) out.push_back(op);
  };
  add(all_cases()), add(test::norm_cases()), add(test::pointwise_cases()), add(test::rope_cases()), add(test::state_cases()), add(test::stored_cases()), add(test::product_cases()), add(test::expert_cases()),
      add(test::attention_cases()), add(test::sparse_cases()), add(test::scan_cases());
  return out;
}

std::string case_name(const testing::TestParamInfo<Op>& info) { return std::string(kind(info.param)) + "_" + std::to_string(info.index); }
std::size_t elements(const Operand& o) { return static_cast<std::size_t>(o.shape.elements()); }
bool read(const Operand& o) { return o.role == Role::input || o.role == Role::index || o.role == Role::weight; }
bool wanted(const Operand& o, Wants wants) {
  return (o.role == Role::input && wants.input_grad) || (o.role == Role::weight && o.trained && wants.weight_grad);
}

/// Numbers rounded to the storage type.
void round_to(DType type, std::vector<double>& values, std::size_t count) {
  if (!test::plain(type)) return;
  const auto rounded = test::numbers(type, test::stored(type, values, count));
  std::copy(rounded.begin(), rounded.end(), values.begin());
}

CallData<double> inputs_of(const Op& op) {
  const Operands list = operands(op);
  CallData<double> data = test::random_inputs(op, 7);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].name == "positions")
      for (std::size_t e = 0; e < data.buffers[i].size(); ++e) data.buffers[i][e] = static_cast<double>(e * 104729 % 1000003);   // far positions need exact angles
    if (std::holds_alternative<op::Router>(op) && list[i].name == "w")   // logits of ordinary size
      for (double& w : data.buffers[i]) w *= 2 / std::sqrt(static_cast<double>(list[i].shape[1]));
    if (read(list[i])) round_to(list[i].dtype, data.buffers[i], elements(list[i]));
    if (list[i].role == Role::weight && !test::plain(list[i].dtype)) data.buffers[i] = test::decoded(test::stacked(list[i]), test::stored_weight(list[i]));
    data.views[i].data = data.buffers[i].data();
  }
  return data;
}

/// An operand's bytes.
Raw stored_of(const Op& op, const Operand& o, const std::vector<double>& values) {
  if (test::plain(o.dtype)) return test::stored(o.dtype, values, elements(o));
  if (o.role != Role::weight) return test::random_stored(o);
  Raw raw = test::stored_weight(o);
  if (cuda::reads_arranged(op)) test::arrange(o.dtype, raw, o.dtype == DType::fp8 ? o.shape.elements() : o.shape.elements() / 2);
  return raw;
}

/// What rounding to the type and sums in fp32 may cost, of the value and of the tensor's root mean square.
double tolerance(const Op& op, const Operand& o) {
  if (o.dtype == DType::u8) return 0;
  // What is normalised has been rounded to bf16 as the sum, and is once more as the result.
  if (const auto* norm = std::get_if<op::RmsNorm>(&op); norm != nullptr && norm->residual_add && o.dtype == DType::bf16) return 1e-2;   // 2.5 x 2^-8
  // 1.5 x 2^-8; the router's are sums of two products, and the library rounds the second before it adds the first.
  if (o.dtype == DType::bf16) return std::holds_alternative<op::Router>(op) ? 1e-2 : 6e-3;
  if (o.dtype == DType::f16) return 8e-4;
  // The statistics of a sum that is rounded to bf16 first, where the reference's is not.
  if (const auto* norm = std::get_if<op::RmsNorm>(&op); norm != nullptr && norm->residual_add) return 3e-3;
  if (const auto* loss = std::get_if<op::CrossEntropy>(&op); loss != nullptr && loss->lora_rank > 0) return 2e-3;   // logits through a pair read x A^T, kept in bf16
  // An error of the score, a sum of thousands of products, is a relative error of the softmax.
  if (std::holds_alternative<op::AttentionResidual>(op)) return 5e-4;
  return 4e-5;
}

/// A product through a LoRA pair, whose low-rank numbers are stored in bf16 here and nowhere in the reference, or over weights that are read back to bf16.
bool through_low_rank(const Op& op) {
  const auto* linear = std::get_if<op::Linear>(&op);
  const auto* grouped = std::get_if<op::GroupedLinear>(&op);
  const auto* heads = std::get_if<op::HeadLinear>(&op);
  return (linear != nullptr && linear->lora_rank > 0) || (grouped != nullptr && (grouped->lora_rank > 0 || (grouped->weight != DType::bf16 && grouped->weight != DType::mxfp4))) || (heads != nullptr && heads->lora_rank > 0);
}

/// The part of the tolerance that goes with the tensor's root mean square, not with the value.
double spread(const Op& op, const Operand& o) {
  // Numbers rounded to bf16 on the way (gradients of logits; x A^T, dy B and the pair's share of y) are each off by a relative 1.6e-3 in the
  // mean square; a row's results share the errors of its low-rank numbers, so that the largest of 10^5 lies further out than it would alone.
  if (o.dtype != DType::bf16) return tolerance(op, o) / 4;
  if (std::holds_alternative<op::CrossEntropy>(op)) return 6e-3;
  // What comes through the coefficients is stored in bf16 before what comes through the mix is added.
  if (std::holds_alternative<op::HyperPre>(op)) return 6e-3;
  return through_low_rank(op) ? 2e-2 : tolerance(op, o) / 4;
}

/// `rounding`: what roundings on the way may cost each element, where that is known; it then stands for the spread.
void expect_near(const Op& op, const Operand& o, const Raw& raw, const std::vector<double>& want, const std::string& what, const std::vector<double>& rounding = {}) {
  const auto values = test::numbers(o.dtype, raw);
  if (const double limit = test::chunked_limit(op, o); limit > 0) {
    EXPECT_LE(test::relative_norm(values, want, elements(o)), limit) << what << o.name;
    return;
  }
  if (const std::int64_t columns = test::head_columns(op, o); columns > 0 && o.dtype == DType::bf16) {
    test::expect_attention_near(columns, o, values, want, what);
    return;
  }
  if (through_low_rank(op)) {   // two roundings of 1.6e-3, and the result's
    EXPECT_LE(test::relative_norm(values, want, elements(o)), 4e-3) << what << o.name;
  }
  double squares = 0;
  for (std::size_t e = 0; e < elements(o); ++e) squares += want[e] * want[e];
  const double size = std::sqrt(squares / std::max<double>(1, static_cast<double>(elements(o)))), most = tolerance(op, o);
  std::size_t wrong = 0;
  for (std::size_t e = 0; e < elements(o) && wrong < 3; ++e) {
    // Codes of a byte may fall on the other side of a half.
    const double near = rounding.empty() ? spread(op, o) * size : rounding[e] + tolerance(op, o) / 4 * size;
    const double allowed = o.dtype == DType::u8 ? 1 : most * std::abs(want[e]) + near + 1e-30;
    if (std::abs(values[e] - want[e]) <= allowed) continue;   // false for NaN
    ADD_FAILURE() << what << o.name << "[" << e << "] is " << values[e] << ", want " << want[e] << " within " << allowed;
    ++wrong;
  }
}

kernels::DeviceBuffer scratch_of(const Op& op, Pass pass, Wants wants, const kernels::DeviceFacts* device) {
  kernels::DeviceBuffer scratch(static_cast<std::size_t>((device == nullptr ? cuda::workspace(op, pass, wants) : cuda::workspace(op, pass, wants, *device)).value));
  scratch.fill(0xff);
  return scratch;
}

/// Runs `call` and returns the bytes of each operand that `written` names; poisons them first.
template <class Call, class Written>
std::vector<Raw> run(const Operands& list, DeviceCall& device, Call&& call, Written&& written) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (device.memory[i] && written(list[i])) device.memory[i]->poison();
  call();
  kernels::check(cudaDeviceSynchronize(), "finish a call");
  std::vector<Raw> out(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!device.memory[i]) continue;
    if (written(list[i])) out[i] = device.memory[i]->download();
    EXPECT_TRUE(device.memory[i]->untouched_around()) << "wrote beside " << list[i].name;
  }
  return out;
}

/// True if the call was refused because its views are shifted, before it wrote anything.
template <class Call, class Written>
bool refused_for_alignment(const Operands& list, DeviceCall& device, Call&& call, Written&& written) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (device.memory[i] && written(list[i])) device.memory[i]->poison();
  try {
    call();
  } catch (const InputError& e) {
    if (std::string(e.what()).find("aligned") == std::string::npos) throw;
    kernels::check(cudaDeviceSynchronize(), "finish a refused call");
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!device.memory[i] || !written(list[i])) continue;
      const Raw raw = device.memory[i]->download();
      EXPECT_TRUE(std::all_of(raw.begin(), raw.end(), [](std::uint8_t b) { return b == 0xff; })) << "refused after it wrote " << list[i].name;
    }
    return true;
  }
  return false;
}

/// cuBLASLt where the operator multiplies with it; it does not start where the driver is told to use PTX alone.
std::optional<cuda::Products> products_of(const Op& op) {
  const std::string_view name = kind(op);
  if (name == "linear" || name == "head_linear" || name == "router" || name == "cross_entropy" || name == "hyper_pre") return std::optional<cuda::Products>(std::in_place);
  return std::nullopt;
}

/// `device`: what the calls may use of it; null: all.
void expect_forward(const Op& op, const kernels::DeviceFacts* device_facts) {
  const Operands list = operands(op);
  const bool block_stored = std::holds_alternative<op::Quantise>(op) || std::holds_alternative<op::Dequantise>(op);
  std::optional<cuda::Products> products = products_of(op);
  auto data = inputs_of(op);
  const auto written = [](const Operand& o) { return !read(o); };
  for (test::Routing& routing : test::routings(op)) {
    if (!block_stored) reference::forward<double>(op, data.views, routing.host());
    const cuda::Ragged ragged = routing.device();
    for (const std::size_t shift : {0u, 1u}) {
      DeviceCall device;
      for (std::size_t i = 0; i < list.size(); ++i) {
        device.add(list[i], true, shift);
        if (read(list[i])) device.memory[i]->upload(stored_of(op, list[i], data.buffers[i]));
      }
      const auto scratch = scratch_of(op, Pass::forward, {}, device_facts);
      const auto call = [&] { cuda::forward(op, device.pointers(), scratch.get(), nullptr, products ? &*products : nullptr, ragged, device_facts); };
      if (shift != 0 && refused_for_alignment(list, device, call, written)) continue;
      const auto out = run(list, device, call, written);
      const std::string what = key(op, Pass::forward) + routing.name() + (shift ? ", shifted: " : ": ");
      if (std::holds_alternative<op::Quantise>(op)) {
        test::expect_quantised(list.front(), list.back(), data.buffers.front(), out.back(), what);
      } else if (std::holds_alternative<op::Dequantise>(op)) {
        expect_near(op, list.back(), out.back(), test::decoded(list.front(), device.memory.front()->download()), what);
      } else {
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (!written(list[i])) continue;
          if (const auto* indexer = std::get_if<op::Indexer>(&op)) test::expect_selected(*indexer, data, test::numbers(list[i].dtype, out[i]), what);
          else expect_near(op, list[i], out[i], data.buffers[i], what);
        }
      }
      for (int replay = 0; shift == 0 && replay < test::replays(); ++replay) ASSERT_EQ(run(list, device, call, written), out) << what << "replay " << replay;
      if (testing::Test::HasFailure()) return;
    }
  }
}

void expect_gradients(const Op& op, Wants wants, test::Routing& routing, std::size_t shift, const CallData<double>& data, CallData<double>& direction, std::optional<cuda::Products>& products,
                      const kernels::DeviceFacts* device_facts) {
  const Operands list = operands(op);
  CallData<double> want(list, std::numeric_limits<double>::quiet_NaN());
  std::vector<reference::View<double>> values = data.views, d = want.views;
  DeviceCall device, gradients;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool kept = needed(list[i].need, wants), arrives = list[i].role == Role::output, leaves = wanted(list[i], wants);
    if (!kept) values[i].data = nullptr;
    if (arrives) d[i].data = direction.buffers[i].data();
    else if (!leaves) d[i].data = nullptr;
    device.add(list[i], kept, shift), gradients.add(list[i], arrives || leaves, shift);
    if (kept) device.memory[i]->upload(stored_of(op, list[i], data.buffers[i]));
    if (arrives) gradients.memory[i]->upload(test::stored(list[i].dtype, direction.buffers[i], elements(list[i])));
  }
  reference::backward<double>(op, values, d, routing.host());
  const cuda::Ragged ragged = routing.device();
  const auto scratch = scratch_of(op, Pass::backward, wants, device_facts);
  const auto call = [&] { cuda::backward(op, device.pointers(), gradients.pointers(), scratch.get(), nullptr, products ? &*products : nullptr, ragged, device_facts); };
  const auto written = [&](const Operand& o) { return wanted(o, wants); };
  if (shift != 0 && refused_for_alignment(list, gradients, call, written)) return;
  const auto out = run(list, gradients, call, written);
  const std::string what = key(op, Pass::backward, wants) + routing.name() + (shift ? ", shifted: d" : ": d");
  std::unique_ptr<test::CrossEntropyRounding> rounding;
  if (const auto* loss = std::get_if<op::CrossEntropy>(&op); loss != nullptr && wants.weight_grad) {
    const auto at = std::find_if(list.begin(), list.end(), [](const Operand& o) { return o.name == "loss"; }) - list.begin();
    rounding = std::make_unique<test::CrossEntropyRounding>(*loss, data.views, direction.buffers[static_cast<std::size_t>(at)][0]);
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    if (written(list[i])) expect_near(op, list[i], out[i], want.buffers[i], what, rounding ? rounding->of(list[i].name) : std::vector<double>{});
  for (int replay = 0; shift == 0 && replay < test::replays(); ++replay) ASSERT_EQ(run(list, gradients, call, written), out) << what << " replay " << replay;
}

void expect_backward(const Op& op, const kernels::DeviceFacts* device_facts) {
  const Operands list = operands(op);
  if (std::none_of(list.begin(), list.end(), [](const Operand& o) { return o.role == Role::output; })) return;
  std::optional<cuda::Products> products = products_of(op);
  auto data = inputs_of(op);
  for (test::Routing& routing : test::routings(op)) {
    reference::forward<double>(op, data.views, routing.host());
    CallData<double> direction(list);
    std::mt19937_64 random(11);
    for (std::size_t i = 0; i < list.size(); ++i) {   // both backends read what storage keeps of the forward
      if (!read(list[i])) round_to(list[i].dtype, data.buffers[i], elements(list[i]));
      for (double& v : direction.buffers[i]) v = std::uniform_real_distribution<double>(-1, 1)(random);
      round_to(list[i].dtype, direction.buffers[i], elements(list[i]));
    }
    for (const Wants asked : {Wants{true, true}, Wants{true, false}, Wants{false, true}})
      for (const std::size_t shift : {0u, 1u}) {
        const Wants wants = possible(op, asked);
        if (wants == Wants{false, false} || wants != asked) continue;
        expect_gradients(op, wants, routing, shift, data, direction, products, device_facts);
        if (testing::Test::HasFailure()) return;
      }
  }
}

class Cuda : public testing::TestWithParam<Op> {
 protected:
  void SetUp() override {
    if (kernels::device_count() == 0) GTEST_SKIP() << kind(GetParam()) << ": no CUDA device on this machine";
  }
};

TEST_P(Cuda, ForwardIsTheReferences) { expect_forward(GetParam(), nullptr); }
TEST_P(Cuda, BackwardIsTheReferences) { expect_backward(GetParam(), nullptr); }
INSTANTIATE_TEST_SUITE_P(Catalogue, Cuda, testing::ValuesIn(cuda_cases()), case_name);

/// An A100's: the forms of mma.sync, and rings that fit its shared memory.
constexpr kernels::DeviceFacts kAmpere{.multiprocessors = 108, .compute_capability = 80, .shared_bytes_block = 163 << 10};

/// The calls that run otherwise there; the others' kernels are the same ones.
std::vector<Op> portable_cases() {
  std::vector<Op> out;
  for (const Op& op : cuda_cases()) {
    const std::string_view name = kind(op);
    if ((name == "attention" || name == "grouped_linear" || name == "rms_norm" || name == "gated_rms_norm" || name == "layer_norm" || name == "attention_residual") && cuda::refusal(op, kAmpere).empty())
      out.push_back(op);
  }
  return out;
}
class CudaPortable : public Cuda {};

TEST_P(CudaPortable, ForwardIsTheReferences) { expect_forward(GetParam(), &kAmpere); }
TEST_P(CudaPortable, BackwardIsTheReferences) { expect_backward(GetParam(), &kAmpere); }
INSTANTIATE_TEST_SUITE_P(Catalogue, CudaPortable, testing::ValuesIn(portable_cases()), case_name);

TEST(CudaPortableCalls, AreRefusedByNameWhereTheDeviceHasNoFormOfThem) {
  for (const auto& [op, why] : std::vector<std::pair<Op, const char*>>{
           {op::Kda{.tokens = 64, .sequence_length = 64, .heads = 1, .head_dim = 128}, "compute capability 9.0), this device has 8.0"},
           {op::GatedDeltaNet{.tokens = 64, .sequence_length = 64, .k_heads = 1, .v_heads = 1, .d_k = 128, .d_v = 128}, "this device has 8.0"},
           {op::GroupedLinear{.rows = 8, .experts = 2, .in = 64, .out = 64, .weight = DType::mxfp4}, "this device has 8.0"},
           {op::Attention{.tokens = 8, .sequence_length = 8, .heads = 1, .kv_heads = 1, .d_qk = 512, .d_v = 512}, "196864 bytes of shared memory a block, this device has 166912"},
           {op::SparseAttention{.tokens = 8, .sequence_length = 8, .heads = 16, .d_qk = 576, .d_v = 512, .topk = 8}, "229376 bytes"}}) {
    EXPECT_EQ(cuda::refusal(op), "") << kind(op);
    EXPECT_NE(cuda::refusal(op, kAmpere).find(why), std::string::npos) << kind(op) << ": " << cuda::refusal(op, kAmpere);
  }
  for (const DType held : {DType::bf16, DType::fp8}) EXPECT_EQ(cuda::refusal(op::GroupedLinear{.rows = 8, .experts = 2, .in = 64, .out = 128, .weight = held}, kAmpere), "");
  EXPECT_NE(cuda::refusal(op::Add{1, 8}, {.multiprocessors = 72, .compute_capability = 75, .shared_bytes_block = 64 << 10}).find("8.0 or later, this one has 7.5"), std::string::npos);
}

TEST(CudaBackend, TheCataloguesTableClaimsWhatTheTypedTestRunsAndNothingElse) {
  const std::vector<Op> run = cuda_cases();
  for (const Op& op : examples()) {
    const bool runs = std::any_of(run.begin(), run.end(), [&](const Op& each) { return kind(each) == kind(op); });
    EXPECT_EQ(backends(kind(op)).cuda, runs) << kind(op) << ": " << cuda::refusal(op);
  }
}

}  // namespace
}  // namespace moeplan
