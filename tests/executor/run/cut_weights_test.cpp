/// Of a weight that ranks share each reads its own part of the file, whatever it is stored as and wherever it is cut: inside rows, inside the tiles
/// and groups of a scale, across the rows of a file that has them the other way round.

#include <gtest/gtest.h>

#include "executor/backend/convert.hpp"
#include "executor/weights/load.hpp"
#include "sim/program/model_tensors.hpp"
#include "tests/executor/run/many_ranks.hpp"
#include "tests/executor/run/scratch.hpp"

namespace moeplan {
namespace {

using namespace test;

struct Case {
  const char* file;
  DType experts = DType::bf16;
  PackedLayout layout = PackedLayout::scale_inv;
};

/// 144 of 288 columns end inside a tile of 128 and a group of 32.
Problem cut_problem(const Case& c) {
  ModelSpec m = shrunk(shipped(c.file), 3);
  if (c.experts != DType::bf16) m.stored = {.experts = c.experts, .layout = c.layout};
  for (LayerSpec& layer : m.layers)
    for (Sublayer& s : layer.sublayers)
      if (auto* f = std::get_if<MoeFfn>(&s.mixer)) f->intermediate = 288;
  return problem(std::move(m), lora(8));
}

/// A checkpoint of random numbers: everything that one rank has a source for.
class RandomCheckpoint {
 public:
  explicit RandomCheckpoint(const Problem& p) {
    const auto nothing = null_backend();
    const Parameters all(lower(p, plan(p), 0), p, *nothing);
    for (const Parameter& each : all.all())
      for (const TensorSource& s : each.adapter ? std::vector<TensorSource>{} : each.sources)
        for (std::int64_t e = 0; e < s.count; ++e) {
          std::string name = s.name;
          if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(e));
          const std::vector<FileTensor> parts = file_tensors({.name = name, .shape = s.shape, .count = 1, .dtype = s.dtype}, p.model.stored.layout);
          for (const FileTensor& t : parts) add(t, &t != &parts.front());
        }
    header_ += "}";
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header_.size() >> (8 * i) & 0xff);
    directory_.write("model.safetensors", length + header_ + data_);
  }
  [[nodiscard]] TensorFiles files() const { return TensorFiles(directory_.path()); }
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(data_.size()); }

 private:
  void add(const FileTensor& t, bool scales) {
    std::string dims;
    for (const auto d : t.shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    header_ += std::string(header_.empty() ? "{" : ",") + "\"" + t.name + R"(":{"dtype":")" + t.dtype + R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + static_cast<std::size_t>(t.bytes.value)) + "]}";
    const std::size_t end = data_.size() + static_cast<std::size_t>(t.bytes.value);
    while (data_.size() < end) {
      const auto byte = [&](std::uint64_t b) { data_ += static_cast<char>(b & 0xff); };
      const float x = std::uniform_real_distribution<float>(scales ? 0.5f : -1.0f, scales ? 2.0f : 1.0f)(random_);
      if (t.dtype == "BF16") byte(to_bf16(x)), byte(to_bf16(x) >> 8);
      else if (t.dtype == "F32") data_.append(reinterpret_cast<const char*>(&x), 4);
      else if (t.dtype == "F8_E4M3") byte(random_() & 0xbf);   // no NaN
      else if (t.dtype == "F8_E8M0" || (scales && t.dtype == "U8")) byte(118 + random_() % 8);
      else if (t.dtype == "U8" || t.dtype == "I8") byte(random_());
      else FAIL() << t.name << " is " << t.dtype;
    }
  }
  Scratch directory_;
  std::string header_, data_;
  std::mt19937_64 random_{7};
};

/// What the ranks of a plan read of a checkpoint, and that each has its part of what one rank has.
std::int64_t read_by_all(const Problem& p, const RandomCheckpoint& checkpoint, const Parallelism& parallelism, const Parameters& whole, Backend& backend) {
  std::int64_t read = 0;
  const Plan q = on_ranks(p, parallelism, 1);
  for (int rank = 0; rank < parallelism.world(); ++rank) {
    const RankPlace place{rank, parallelism};
    Parameters mine(lower(p, q, rank), p, backend, place);
    read += load_weights(checkpoint.files(), p.model, mine, backend);
    for (const Parameter& each : mine.all()) {
      if (each.adapter || each.sources.empty()) continue;
      const std::vector<float> got = values_of(each, backend);
      const auto it = std::find_if(whole.all().begin(), whole.all().end(), [&](const Parameter& w) { return w.name == each.name; });
      const std::vector<float> all = values_of(*it, backend);
      for (const ElementRun& run : held_runs(each.cut(), place))
        for (std::int64_t i = 0; i < run.count; ++i)
          if (got[static_cast<std::size_t>(run.here + i)] != all[static_cast<std::size_t>(run.at + i)]) {
            ADD_FAILURE() << each.name << " of rank " << rank << " differs at " << run.at + i;
            return -1;
          }
    }
  }
  return read;
}

class CutWeights : public testing::TestWithParam<Case> {};

TEST_P(CutWeights, AreReadByTheRankThatHoldsThem) {
  const Problem p = cut_problem(GetParam());
  const RandomCheckpoint checkpoint(p);
  const auto backend = cpu_backend(CpuStorage::wide);
  Parameters whole(lower(p, plan(p), 0), p, *backend);
  const std::int64_t once = load_weights(checkpoint.files(), p.model, whole, *backend);
  const bool plain = GetParam().experts == DType::bf16;
  if (plain) {
    EXPECT_EQ(once, checkpoint.bytes());
  }
  for (const Parallelism& parallelism : {Parallelism{.ep = 4, .dp_shard = 4}, Parallelism{.ep = 2, .etp = 2, .dp_shard = 4}, Parallelism{.etp = 2, .dp_shard = 4, .expert_shard = 2},
                                         Parallelism{.ep = 2, .dp_shard = 4, .expert_shard = 2}}) {
    const std::int64_t all = read_by_all(p, checkpoint, parallelism, whole, *backend);
    // Every element lies on one of these ranks, so together they read the file once; a scale is read by all whose columns it covers.
    EXPECT_LE(static_cast<double>(all), (plain ? 1.0 : 1.1) * static_cast<double>(checkpoint.bytes()));
    EXPECT_GE(all, once);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CutWeights,
                         testing::Values(Case{"qwen/qwen3-30b-a3b.json"}, Case{"gpt-oss/gpt-oss-20b.json"}, Case{"qwen/qwen3-next-80b-a3b.json"},
                                         Case{"deepseek/deepseek-v3.json", DType::fp8, PackedLayout::scale_inv}, Case{"deepseek/deepseek-v3.json", DType::fp8, PackedLayout::compressed_tensors},
                                         Case{"deepseek/deepseek-v3.json", DType::mxfp4, PackedLayout::compressed_tensors},
                                         Case{"deepseek/deepseek-v3.json", DType::mxfp4, PackedLayout::scale}, Case{"gpt-oss/gpt-oss-20b.json", DType::mxfp4, PackedLayout::blocks_scales}),
                         [](const auto& each) { return "case_" + std::to_string(each.index); });

}  // namespace
}  // namespace moeplan
