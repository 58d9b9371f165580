/// \file
/// One typed test over every operator of the CUDA backend: each case, forward and backward, against the CPU reference in double on inputs
/// rounded to their storage types; under each of its routings; with aligned views and with shifted ones, which may be refused for that alone; nothing written beside the outputs; 50 replays equal to the bit.
/// Without a GPU each is skipped by its operator's name.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/arranged.hpp"
#include "kernels/grouped_linear/scratch.hpp"
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
  if (cuda::reads_arranged(op)) test::arrange(raw, o.shape.elements() / 2);
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

kernels::DeviceBuffer scratch_of(const Op& op, Pass pass, Wants wants) {
  kernels::DeviceBuffer scratch(static_cast<std::size_t>(cuda::workspace(op, pass, wants).value));
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

class Cuda : public testing::TestWithParam<Op> {
 protected:
  void SetUp() override {
    if (kernels::device_count() == 0) GTEST_SKIP() << kind(GetParam()) << ": no CUDA device on this machine";
  }
};

TEST_P(Cuda, ForwardIsTheReferences) {
  const Op& op = GetParam();
  const Operands list = operands(op);
  const bool block_stored = std::holds_alternative<op::Quantise>(op) || std::holds_alternative<op::Dequantise>(op);
  cuda::Products products;
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
      const auto scratch = scratch_of(op, Pass::forward, {});
      const auto call = [&] { cuda::forward(op, device.pointers(), scratch.get(), nullptr, &products, ragged); };
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
      if (HasFailure()) return;
    }
  }
}

void expect_gradients(const Op& op, Wants wants, test::Routing& routing, std::size_t shift, const CallData<double>& data, CallData<double>& direction, cuda::Products& products) {
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
  const auto scratch = scratch_of(op, Pass::backward, wants);
  const auto call = [&] { cuda::backward(op, device.pointers(), gradients.pointers(), scratch.get(), nullptr, &products, ragged); };
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

TEST_P(Cuda, BackwardIsTheReferences) {
  const Op& op = GetParam();
  const Operands list = operands(op);
  if (std::none_of(list.begin(), list.end(), [](const Operand& o) { return o.role == Role::output; })) return;
  cuda::Products products;
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
        expect_gradients(op, wants, routing, shift, data, direction, products);
        if (HasFailure()) return;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Cuda, testing::ValuesIn(cuda_cases()), case_name);

TEST(CudaBackend, AddsMoreThanTwoToThe31Elements) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "add: no CUDA device on this machine";
  const op::Add add{262145, 8192};   // 2^31 + 8192 elements
  const std::size_t n = static_cast<std::size_t>(add.tokens * add.hidden), row = static_cast<std::size_t>(add.hidden);
  kernels::DeviceBuffer a(2 * n), b(2 * n), y(2 * n);
  a.fill(0x3e), b.fill(0x3e), y.fill(0xff);   // 0.1856 each
  std::vector<double> last(row);
  for (std::size_t i = 0; i < row; ++i) last[i] = static_cast<double>(i % 113);
  const Raw raw = test::stored(DType::bf16, last, row);
  kernels::check(cudaMemcpy(a.get<std::uint8_t>() + 2 * (n - row), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy the last row");
  const std::vector<void*> pointers{a.get(), b.get(), y.get()};
  cuda::forward(add, pointers, nullptr, nullptr);
  const double each = test::numbers(DType::bf16, Raw{0x3e, 0x3e})[0];
  const auto row_at = [&](std::size_t first) {
    Raw out(2 * row);
    kernels::check(cudaMemcpy(out.data(), y.get<std::uint8_t>() + 2 * first, out.size(), cudaMemcpyDeviceToHost), "copy a row back");
    return test::numbers(DType::bf16, out);
  };
  for (const std::size_t first : {std::size_t{0}, n / 2, n - 2 * row})
    for (const double v : row_at(first)) ASSERT_EQ(v, 2 * each) << "row at " << first;
  const auto end = row_at(n - row);
  for (std::size_t i = 0; i < row; ++i) ASSERT_NEAR(end[i], last[i] + each, 4e-3 * (1 + last[i])) << i;
}

TEST(CudaBackend, ALinearLayerReadsAStoredWeightAsItsDequantisedForm) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "linear: no CUDA device on this machine";
  cuda::Products products;
  constexpr std::int64_t tokens = 33, in = 256, out = 96;
  const auto buffer = [](std::int64_t bytes) { return kernels::DeviceBuffer(static_cast<std::size_t>(bytes)); };
  const auto upload = [](kernels::DeviceBuffer& to, std::int64_t n, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) v = std::uniform_real_distribution<double>(-1, 1)(random);
    const Raw raw = test::stored(DType::bf16, values, values.size());
    kernels::check(cudaMemcpy(to.get<std::uint8_t>(), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy");
  };
  auto x = buffer(2 * tokens * in), w = buffer(2 * in * out), plain = buffer(2 * in * out), y = buffer(2 * tokens * out), want = buffer(2 * tokens * out), dx = buffer(2 * tokens * in), want_dx = buffer(2 * tokens * in);
  upload(x, tokens * in, 1), upload(w, in * out, 2);
  for (const DType type : {DType::fp8, DType::mxfp4, DType::int4}) {
    if (!cuda::refusal(op::Quantise{out, in, DType::bf16, type}).empty()) continue;
    auto stored = buffer(stored_bytes(type, Shape{out, in}).value);
    cuda::forward(op::Quantise{out, in, DType::bf16, type}, std::vector<void*>{w.get(), stored.get()}, nullptr, nullptr);
    cuda::forward(op::Dequantise{out, in, type}, std::vector<void*>{stored.get(), plain.get()}, nullptr, nullptr);
    const op::Linear reads{.tokens = tokens, .in = in, .out = out, .weight = type}, bf16{.tokens = tokens, .in = in, .out = out};
    auto scratch = buffer(std::max(cuda::workspace(reads, Pass::forward).value, cuda::workspace(reads, Pass::backward, {true, false}).value));
    cuda::forward(reads, std::vector<void*>{x.get(), stored.get(), y.get()}, scratch.get(), nullptr, &products);
    cuda::forward(bf16, std::vector<void*>{x.get(), plain.get(), want.get()}, nullptr, nullptr, &products);
    cuda::backward(reads, std::vector<void*>{nullptr, stored.get(), nullptr}, std::vector<void*>{dx.get(), nullptr, y.get()}, scratch.get(), nullptr, &products);
    cuda::backward(bf16, std::vector<void*>{nullptr, plain.get(), nullptr}, std::vector<void*>{want_dx.get(), nullptr, want.get()}, nullptr, nullptr, &products);
    const auto bytes = [](const kernels::DeviceBuffer& from) {
      Raw raw(from.bytes());
      kernels::check(cudaMemcpy(raw.data(), from.get<std::uint8_t>(), raw.size(), cudaMemcpyDeviceToHost), "copy back");
      return raw;
    };
    EXPECT_EQ(bytes(y), bytes(want)) << name_of(type);
    EXPECT_EQ(bytes(dx), bytes(want_dx)) << name_of(type);
  }
}

TEST(CudaBackend, GroupedLayersReadStoredWeightsInWavesAsTheirDequantisedForm) {
  if (kernels::device_count() == 0) GTEST_SKIP() << "grouped_linear: no CUDA device on this machine";
  constexpr std::int64_t rows = 300, experts = 5, width = 8192, block = std::int64_t{1} << 24;
  const op::GroupedLinear reads{.rows = rows, .experts = experts, .in = width, .out = width, .weight = DType::fp8}, bf16{.rows = rows, .experts = experts, .in = width, .out = width};
  ASSERT_LT(kernels::grouped_linear::wave_experts(reads), experts);
  const auto buffer = [](std::int64_t bytes) { return kernels::DeviceBuffer(static_cast<std::size_t>(bytes)); };
  std::mt19937_64 random(7);
  std::vector<double> values(static_cast<std::size_t>(block));
  for (double& v : values) v = static_cast<double>(random() % 2048) / 1024 - 1;
  const Raw raw = test::stored(DType::bf16, values, values.size());
  const auto upload = [&](kernels::DeviceBuffer& to, std::int64_t elements) {
    for (std::int64_t at = 0; at < elements; at += block)
      kernels::check(cudaMemcpy(to.get<std::uint8_t>() + 2 * at, raw.data(), static_cast<std::size_t>(2 * std::min(block, elements - at)), cudaMemcpyHostToDevice), "copy");
  };
  auto x = buffer(2 * rows * width), plain = buffer(2 * experts * width * width), y = buffer(2 * rows * width), want = buffer(2 * rows * width);
  auto stored = buffer(stored_bytes(DType::fp8, Shape{experts, width, width}).value);
  upload(x, rows * width), upload(plain, experts * width * width);
  cuda::forward(op::Quantise{experts * width, width, DType::bf16, DType::fp8}, std::vector<void*>{plain.get(), stored.get()}, nullptr, nullptr);
  cuda::forward(op::Dequantise{experts * width, width, DType::fp8}, std::vector<void*>{stored.get(), plain.get()}, nullptr, nullptr);
  const auto bytes = [](const kernels::DeviceBuffer& from) {
    Raw out(from.bytes());
    kernels::check(cudaMemcpy(out.data(), from.get<std::uint8_t>(), out.size(), cudaMemcpyDeviceToHost), "copy back");
    return out;
  };
  auto scratch = buffer(std::max(cuda::workspace(reads, Pass::forward).value, cuda::workspace(reads, Pass::backward, {true, false}).value));
  cuda::forward(reads, std::vector<void*>{x.get(), stored.get(), y.get()}, scratch.get(), nullptr);
  cuda::forward(bf16, std::vector<void*>{x.get(), plain.get(), want.get()}, scratch.get(), nullptr);
  EXPECT_EQ(bytes(y), bytes(want));
  cuda::backward(reads, std::vector<void*>{nullptr, stored.get(), nullptr}, std::vector<void*>{y.get(), nullptr, x.get()}, scratch.get(), nullptr);
  cuda::backward(bf16, std::vector<void*>{nullptr, plain.get(), nullptr}, std::vector<void*>{want.get(), nullptr, x.get()}, scratch.get(), nullptr);
  EXPECT_EQ(bytes(y), bytes(want));
}

std::string refused(const Op& op, std::size_t missing = SIZE_MAX) {
  std::vector<std::uint64_t> somewhere(64);
  std::vector<void*> pointers(operands(op).size(), somewhere.data());
  if (missing < pointers.size()) pointers[missing] = nullptr;
  try {
    cuda::forward(op, pointers, somewhere.data(), nullptr);
  } catch (const InputError& e) {
    return e.what();
  }
  return "ran";
}

TEST(CudaBackend, RefusesByNameWhatItDoesNotHave) {
  for (const Op& op : examples())
    EXPECT_TRUE(cuda::refusal(op).empty() || refused(op).find(kind(op)) != std::string::npos) << refused(op);
  EXPECT_NE(refused(op::AdamW{48, OptimizerKind::muon, DType::f32, DType::bf16, 6, 8}).find("muon"), std::string::npos);
  EXPECT_NE(refused(op::Quantise{2, 128, DType::bf16, DType::nf4}).find("nf4"), std::string::npos);
  EXPECT_NE(refused(op::Embedding{5, 17, 32, Training::lora, 4}).find("LoRA"), std::string::npos);
  EXPECT_NE(refused(op::ShortConv{.tokens = 8, .sequence_length = 8, .channels = 8, .taps = 5}).find("5 taps"), std::string::npos);
  EXPECT_NE(refused(op::Rope{.tokens = 2, .heads = 1, .head_dim = 8, .rotary_dim = 3, .sequence_length = 2}).find("pairs"), std::string::npos);
}

TEST(CudaBackend, RefusesRowsThatDoNotFitABlockWithTheNumber) {
  EXPECT_NE(refused(op::RmsNorm{2, 16392}).find("16392"), std::string::npos);
  EXPECT_NE(refused(op::LayerNorm{2, 4097}).find("4097"), std::string::npos);
}

TEST(CudaBackend, NamesAnOperandThatHasNoMemory) { EXPECT_NE(refused(op::Add{3, 8}, 1).find("add.b"), std::string::npos) << refused(op::Add{3, 8}, 1); }

TEST(CudaBackend, TheCataloguesTableClaimsWhatTheTypedTestRunsAndNothingElse) {
  const std::vector<Op> run = cuda_cases();
  for (const Op& op : examples()) {
    const bool runs = std::any_of(run.begin(), run.end(), [&](const Op& each) { return kind(each) == kind(op); });
    EXPECT_EQ(backends(kind(op)).cuda, runs) << kind(op) << ": " << cuda::refusal(op);
  }
}

}  // namespace
}  // namespace moeplan
