/// Laws that every contract keeps, over every case of every operator.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/write.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {
namespace {

const std::vector<Wants> all_wants{{true, true}, {true, false}, {false, true}, {false, false}};

class EveryCase : public testing::TestWithParam<Op> {};

TEST_P(EveryCase, HasShapesOfAtMostFourNonNegativeDimensions) {
  for (const Operand& o : operands(GetParam())) {
    EXPECT_GE(o.shape.rank, 1) << o.name;
    EXPECT_LE(o.shape.rank, 4) << o.name;
    for (int i = 0; i < o.shape.rank; ++i) EXPECT_GE(o.shape[i], 0) << o.name;
    EXPECT_FALSE(o.name.empty());
  }
}

TEST_P(EveryCase, TrainsOnlyWeightsAndHasSomethingToWrite) {
  bool writes = false;
  for (const Operand& o : operands(GetParam())) {
    EXPECT_TRUE(!o.trained || o.role == Role::weight) << o.name;
    writes = writes || o.role == Role::output || o.role == Role::aux;
  }
  EXPECT_TRUE(writes);
}

TEST_P(EveryCase, ListsInputsAndWeightsBeforeWhatItWrites) {
  bool writing = false;
  for (const Operand& o : operands(GetParam())) {
    const bool written = o.role == Role::output || o.role == Role::aux;
    EXPECT_TRUE(written || !writing) << o.name << " is read but listed after an output";
    writing = written;
  }
}

TEST_P(EveryCase, GivesOperandsDistinctNamesAmongWhatIsReadAndAmongWhatIsWritten) {
  std::set<std::pair<bool, std::string_view>> seen;
  for (const Operand& o : operands(GetParam())) EXPECT_TRUE(seen.insert({o.role == Role::output || o.role == Role::aux, o.name}).second) << o.name;
}

TEST_P(EveryCase, CostsNothingWhenNothingIsWanted) {
  EXPECT_EQ(flops(GetParam(), Pass::backward, {false, false}).value, 0);
  EXPECT_EQ(bytes_moved(GetParam(), Pass::backward, {false, false}).value, 0);
  EXPECT_EQ(workspace(GetParam(), Pass::backward, {false, false}).value, 0);
  EXPECT_EQ(kept_bytes(GetParam(), {false, false}).value, 0);
}

TEST_P(EveryCase, HasFiniteNonNegativeCostsThatDoNotShrinkWithWhatIsWanted) {
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Wants wants : all_wants) {
      const double f = flops(GetParam(), pass, wants).value;
      EXPECT_TRUE(std::isfinite(f) && f >= 0);
      EXPECT_GE(bytes_moved(GetParam(), pass, wants).value, 0);
      EXPECT_GE(workspace(GetParam(), pass, wants).value, 0);
      EXPECT_LE(f, flops(GetParam(), pass, {true, true}).value);
      EXPECT_LE(bytes_moved(GetParam(), pass, wants).value, bytes_moved(GetParam(), pass, {true, true}).value);
      EXPECT_LE(kept_bytes(GetParam(), wants).value, kept_bytes(GetParam(), {true, true}).value);
    }
}

TEST_P(EveryCase, DoesNoArithmeticOnNoRows) {
  const Operands list = operands(GetParam());
  if (list.front().shape[0] != 0) return;
  for (const Pass pass : {Pass::forward, Pass::backward}) EXPECT_EQ(flops(GetParam(), pass).value, 0);
}

TEST_P(EveryCase, MovesItsTensorsOnceForward) {
  if (kind(GetParam()) == "embedding" || is_view(GetParam())) return;   // these move less, and say so
  std::int64_t sum = 0;
  for (const Operand& o : operands(GetParam())) sum += o.bytes().value;
  EXPECT_EQ(bytes_moved(GetParam(), Pass::forward).value, sum);
}

TEST_P(EveryCase, ReadsBackFromItsKey) {
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Wants wants : all_wants) {
      const std::string text = key(GetParam(), pass, wants);
      const auto call = parse_key(text);
      ASSERT_TRUE(call) << text;
      EXPECT_EQ(kind(call->op), kind(GetParam()));
      EXPECT_EQ(call->pass, pass);
      EXPECT_EQ(call->wants, pass == Pass::backward ? wants : Wants{});
      EXPECT_EQ(key(call->op, call->pass, call->wants), text);
      EXPECT_EQ(flops(call->op, pass, wants).value, flops(GetParam(), pass, wants).value) << "a field outside the key changes the cost";
    }
}

TEST_P(EveryCase, ReadsBackFromItsJson) {
  EXPECT_EQ(read_document<Op>(to_json(GetParam()), "op.json"), GetParam());
}

std::string case_name(const testing::TestParamInfo<Op>& info) { return std::string(kind(info.param)) + "_" + std::to_string(info.index); }
INSTANTIATE_TEST_SUITE_P(Catalogue, EveryCase, testing::ValuesIn(all_cases()), case_name);

TEST(Catalogue, GivesEveryCaseAKeyOfItsOwnUnlessOnlyRealValuesDiffer) {
  std::set<std::string> keys;
  std::size_t calls = 0;
  for (const Op& op : all_cases()) calls += keys.insert(key(op, Pass::forward)).second;
  EXPECT_EQ(calls, all_cases().size());
}

TEST(Catalogue, WritesKeysThatReadLikeTheCall) {
  EXPECT_EQ(key(op::RmsNorm{.tokens = 8192, .hidden = 7168}, Pass::forward), "rms_norm tokens=8192 hidden=7168 forward");
  EXPECT_EQ(key(op::Linear{.tokens = 64, .in = 8, .out = 16, .weight = DType::fp8, .training = Training::lora, .lora_rank = 4}, Pass::backward, {true, false}),
            "linear tokens=64 in=8 out=16 weight=fp8 training=lora lora_rank=4 backward dx");
}

TEST(Catalogue, RefusesTextsThatAreNoKeys) {
  for (const char* text : {"", "rms_norm", "rms_norm tokens=1", "rms_norm tokens=1 hidden=2", "rms_norm tokens=1 hidden=2 sideways", "rms_norm tokens=x hidden=2 forward",
                           "rms_norm tokens=-1 hidden=2 forward", "rms_norm tokens=1 hidden=0 forward", "rms_norm tokens=1 hidden=2 forward dx", "rms_norm tokens=1 hidden=2 backward dz",
                           "rms_norm width=3 forward", "rms_norm epsilon=3 forward", "no_such tokens=1 forward", "linear in=8 weight=bf17 forward", "linear in=99999999999999999999 forward"})
    EXPECT_FALSE(parse_key(text)) << text;
}

TEST(Catalogue, DescribesEveryOperatorWithDocumentationFieldsAndOperands) {
  const Json list = describe();
  ASSERT_EQ(list.size(), std::variant_size_v<Op>);
  for (const Json& each : list) {
    EXPECT_FALSE(each.at("name").get<std::string>().empty());
    EXPECT_FALSE(each.at("doc").get<std::string>().empty()) << each.at("name");
    EXPECT_FALSE(each.at("fields").empty()) << each.at("name");
    EXPECT_FALSE(each.at("operands").empty()) << each.at("name");
  }
}

TEST(Catalogue, HasOneFolderForEachOperatorAndSaysWhichImplementationsAreThere) {
  namespace fs = std::filesystem;
  std::set<std::string> folders, kinds;
  for (const auto& entry : fs::directory_iterator(fs::path(MOEPLAN_SOURCE) / "kernels"))
    if (fs::exists(entry.path() / "op.hpp")) folders.insert(entry.path().filename().string());
  for (const Op& op : examples()) kinds.insert(std::string(kind(op)));
  EXPECT_EQ(folders, kinds);
  for (const std::string& name : kinds) {
    // Where an operator has a reference of its own besides, the one that the catalogue calls lies beside it.
    bool there = false;
    for (const char* file_name : {"reference.cpp", "reference_catalogue.cpp"}) {
      std::ifstream file(fs::path(MOEPLAN_SOURCE) / "kernels" / name / file_name);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      there = there || text.find("MOEPLAN_INSTANTIATE_REFERENCE") != std::string::npos;
    }
    EXPECT_EQ(backends(name).reference, there) << name;
  }
  EXPECT_EQ(backends("no_such"), Backends{});
}

TEST(Catalogue, FitsTheLargestNumberOfStoredBlocks) {
  EXPECT_EQ(operands(op::AttentionResidual{.tokens = 2, .hidden = 4, .blocks = op::AttentionResidual::most_blocks}).size(), 22u);
}

TEST(BytesMoved, OfARmsNormAreItsTensorsOnce) {
  const Op norm = op::RmsNorm{.tokens = 100, .hidden = 10};
  EXPECT_EQ(bytes_moved(norm, Pass::forward).value, 2000 + 20 + 2000 + 400);                      // x, w, y, 1/rms
  EXPECT_EQ(bytes_moved(norm, Pass::backward, {true, false}).value, 2000 + 20 + 400 + 2000 + 2000);  // x, w, 1/rms, dy; dx
}

TEST(BytesMoved, OfAFrozenQuantisedLinearBackwardAreGradientsAndPackedWeights) {
  const Op linear = op::Linear{.tokens = 10, .in = 64, .out = 32, .weight = DType::mxfp4};
  const std::int64_t packed = 32 * (32 + 2);
  EXPECT_EQ(bytes_moved(linear, Pass::backward, {true, true}).value, packed + 2 * 10 * 32 + 2 * 10 * 64);
}

TEST(BytesMoved, OfAnEmbeddingAreTheRowsLookedUpNotTheTable) {
  const Op small = op::Embedding{.tokens = 10, .vocabulary = 100, .hidden = 8}, large = op::Embedding{.tokens = 10, .vocabulary = 1000000, .hidden = 8};
  EXPECT_EQ(bytes_moved(small, Pass::forward), bytes_moved(large, Pass::forward));
  EXPECT_EQ(flops(large, Pass::forward).value, 0);
}

TEST(KeptBytes, OfAFrozenLinearAreNoneAndOfALoraLinearItsInputs) {
  EXPECT_EQ(kept_bytes(op::Linear{.tokens = 10, .in = 8, .out = 4}).value, 0);
  EXPECT_EQ(kept_bytes(op::Linear{.tokens = 10, .in = 8, .out = 4, .training = Training::lora, .lora_rank = 2}).value, 2 * 10 * (8 + 2));
  EXPECT_EQ(kept_bytes(op::Linear{.tokens = 10, .in = 8, .out = 4, .training = Training::full}).value, 2 * 10 * 8);
}

TEST(KeptBytes, OfACombineAreTheRowsOnlyIfTheWeightsHaveAGradient) {
  const std::int64_t rows = 2 * 10 * 2 * 16, weights = 4 * 20, map = 4 * 20;
  EXPECT_EQ(kept_bytes(op::Combine{.tokens = 10, .top_k = 2, .width = 16}).value, rows + weights + map);
  EXPECT_EQ(kept_bytes(op::Combine{.tokens = 10, .top_k = 2, .width = 16, .weights_grad = false}).value, weights + map);
}

TEST(KeptBytes, OfKdaAreQueryKeyValueGateAndBeta) {
  const std::int64_t t = 128, heads = 3, d = 64;
  EXPECT_EQ(kept_bytes(op::Kda{.tokens = t, .sequence_length = 64, .heads = heads, .head_dim = d}).value, t * heads * (4 * 2 * d + 4));
}

}  // namespace
}  // namespace moeplan
