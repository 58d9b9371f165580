/// \file
/// Rows in runs, moved on the device in one launch, against the copies run by run that every backend begins with: other widths, more runs than a launch takes,
/// empty runs, none.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "executor/backend/convert.hpp"
#include "executor/cuda/backend.hpp"

namespace moeplan {
namespace {

/// Rows of `width` numbers, each another number, before and after on the host.
void expect_moved(std::int64_t width, DType dtype, const std::vector<RowRun>& runs, std::int64_t apart_rows) {
  const auto backend = cuda_backend(0), host = cpu_backend(CpuStorage::as_planned);
  std::int64_t rows = 0;
  for (const RowRun& r : runs) rows += r.count;
  for (const bool gather : {true, false}) {
    std::vector<float> here(static_cast<std::size_t>(rows * width)), there(static_cast<std::size_t>(apart_rows * width)), got, expected;
    for (std::size_t i = 0; i < here.size(); ++i) here[i] = static_cast<float>(i % 251);
    for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<float>(i % 241) - 250;
    for (Backend* b : {backend.get(), host.get()}) {
      const auto bytes = [&](std::size_t n) { return Bytes{std::max<std::int64_t>(64, static_cast<std::int64_t>(n) * plain_bytes(dtype))}; };
      const Backend::Memory near = b->allocate(bytes(here.size()), "rows"), far = b->allocate(bytes(there.size()), "runs");
      const TensorView together{near.get(), dtype, {rows, width}}, apart{far.get(), dtype, {apart_rows, width}};
      b->write(together, here);
      b->write(apart, there);
      b->copy_rows(together, apart, runs, gather);
      std::vector<float>& out = b == host.get() ? expected : got;
      out.resize(gather ? here.size() : there.size());
      b->read(gather ? together : apart, out);
    }
    EXPECT_EQ(got, expected) << "width " << width << " runs " << runs.size() << " gather " << gather;
  }
}

class CudaRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_F(CudaRows, MoveAsRunByRun) {
  for (const std::int64_t width : {1, 3, 6, 8, 72, 2304}) expect_moved(width, DType::bf16, {{5, 3}, {0, 2}, {2, 0}, {20, 1}, {8, 12}}, 21);
  expect_moved(5, DType::f32, {{1, 1}, {0, 1}}, 2);
  expect_moved(64, DType::bf16, {}, 4);
}

TEST_F(CudaRows, MoveInMoreRunsThanOneLaunchTakes) {
  std::vector<RowRun> runs;
  std::int64_t at = 0;
  std::mt19937 random(7);
  for (int i = 0; i < 2500; ++i) {
    const std::int64_t count = random() % 5;
    runs.push_back({at, count});
    at += count;
  }
  std::shuffle(runs.begin(), runs.end(), random);
  expect_moved(40, DType::bf16, runs, at);
  expect_moved(1024, DType::bf16, runs, at);
}

TEST_F(CudaRows, OfOneLongRun) { expect_moved(2304, DType::bf16, {{1000, 30000}, {0, 1000}}, 31000); }

}  // namespace
}  // namespace moeplan
