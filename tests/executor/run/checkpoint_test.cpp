/// Saves that survive: a resumed run is the run, bit for bit; what is broken is set aside; what is committed is never touched.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/error.hpp"
#include "executor/checkpoint/checkpoint.hpp"
#include "executor/checkpoint/durable.hpp"
#include "tests/executor/run/scratch.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan {
namespace {

using namespace test;
namespace fs = std::filesystem;

Problem small() { return problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4, 2)); }

std::vector<float> state(TinyRun& run) {
  std::vector<float> out;
  for (const Parameter& p : run.trainer->parameters().all()) {
    if (!p.trained) continue;
    for (const auto& memory : {p.value, p.first_moment, p.second_moment}) {
      std::vector<float> v(static_cast<std::size_t>(p.shape.elements()));
      run.backend->read({memory.get(), DType::f32, p.shape}, v);
      out.insert(out.end(), v.begin(), v.end());
    }
  }
  return out;
}

Packer data_of(const TinyRun& run) { return {synthetic_dataset(run.problem.model.vocabulary, 1), run.plan.micro_batch, run.problem.workload.sequence_length, true, 1}; }

void train(TinyRun& run, Packer& data, int steps) {
  for (int s = 0; s < steps; ++s) (void)run.trainer->step({data.next()});
}

TEST(Checkpoint, ResumesBitForBit) {
  const Problem p = small();
  const Plan q = plan(p, 2);
  const std::string print = run_fingerprint(p, q);
  const Scratch dir;
  TinyRun whole(p, q, cpu_backend(CpuStorage::as_planned)), first(p, q, cpu_backend(CpuStorage::as_planned)), second(p, q, cpu_backend(CpuStorage::as_planned));
  Packer a = data_of(whole), b = data_of(first), c = data_of(second);
  train(whole, a, 6);
  train(first, b, 3);
  (void)save_checkpoint(dir.path(), print, {first.trainer->steps_done(), b.position(), 1}, first.trainer->parameters(), *first.backend);
  const auto resumed = load_checkpoint(dir.path(), print, second.trainer->parameters(), *second.backend);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->progress.step, 3);
  EXPECT_EQ(state(first), state(second));
  second.trainer->set_steps_done(resumed->progress.step);
  c.seek(resumed->progress.data);
  train(second, c, 3);
  EXPECT_EQ(state(whole), state(second));
}

TEST(Checkpoint, KeepsTheNewestTwo) {
  TinyRun run(small(), plan(small()), cpu_backend(CpuStorage::as_planned));
  const Scratch dir;
  for (std::int64_t s = 1; s <= 4; ++s) (void)save_checkpoint(dir.path(), "x", {s, {}, 1}, run.trainer->parameters(), *run.backend);
  EXPECT_FALSE(fs::exists(dir.path() / "step-2"));
  EXPECT_TRUE(fs::exists(dir.path() / "step-3"));
  EXPECT_TRUE(fs::exists(dir.path() / "step-4"));
}

TEST(Checkpoint, SetsABrokenSaveAsideAndTakesTheOneBefore) {
  TinyRun run(small(), plan(small()), cpu_backend(CpuStorage::as_planned));
  for (const int kind : {0, 1, 2}) {
    const Scratch dir;
    (void)save_checkpoint(dir.path(), "x", {1, {}, 1}, run.trainer->parameters(), *run.backend);
    (void)save_checkpoint(dir.path(), "x", {2, {}, 1}, run.trainer->parameters(), *run.backend);
    const fs::path state_file = dir.path() / "step-2" / "state.safetensors";
    if (kind == 0) {   // one bit
      std::fstream f(state_file, std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(2000);
      const char c = static_cast<char>(f.get());
      f.seekp(2000);
      f.put(static_cast<char>(c ^ 1));
    } else if (kind == 1) {
      fs::resize_file(state_file, fs::file_size(state_file) - 1);
    } else {
      fs::remove(dir.path() / "step-2" / "manifest.json");
    }
    fs::create_directory(dir.path() / "step-3.tmp-1-0");   // what a kill leaves is not a save
    const auto resumed = load_checkpoint(dir.path(), "x", run.trainer->parameters(), *run.backend);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->progress.step, 1);
    ASSERT_EQ(resumed->notes.size(), 1u);
    EXPECT_TRUE(fs::exists(dir.path() / "step-2.broken")) << resumed->notes.front();
  }
}

TEST(Checkpoint, RefusesAnotherRunAndSaysWhatDiffers) {
  TinyRun run(small(), plan(small()), cpu_backend(CpuStorage::as_planned));
  const Scratch dir;
  (void)save_checkpoint(dir.path(), "x", {1, {}, 1}, run.trainer->parameters(), *run.backend);
  EXPECT_THROW((void)load_checkpoint(dir.path(), "y", run.trainer->parameters(), *run.backend), InputError);
  const Problem wider = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 1), lora(4, 3));
  TinyRun other(wider, plan(wider), cpu_backend(CpuStorage::as_planned));
  try {
    (void)load_checkpoint(dir.path(), "x", other.trainer->parameters(), *other.backend);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("lora_A.weight\" is F32 [2, 32], the run has F32 [3, 32]"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(load_checkpoint(dir.path() / "none", "x", run.trainer->parameters(), *run.backend));
}

TEST(Checkpoint, TheManifestNamesEveryTensorAndTheFileIsHeldToIt) {
  TinyRun run(small(), plan(small()), cpu_backend(CpuStorage::as_planned));
  const Scratch dir;
  (void)save_checkpoint(dir.path(), "x", {1, {}, 1}, run.trainer->parameters(), *run.backend);
  const fs::path at = dir.path() / "step-1" / "manifest.json";
  Json manifest = load_json(at);
  std::size_t saved = 0;
  for (const Parameter& p : run.trainer->parameters().all()) saved += p.trained ? 3 : p.is_state() ? 1 : 0;
  EXPECT_EQ(manifest.at("tensors").size(), saved);
  const std::string name = manifest.at("tensors").begin().key();
  EXPECT_EQ(manifest.at("tensors").at(name).at("dtype"), "F32");
  manifest["tensors"][name]["shape"] = {7, 7};
  std::ofstream(at) << manifest.dump();
  try {
    (void)load_checkpoint(dir.path(), "x", run.trainer->parameters(), *run.backend);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("its manifest says F32 [7, 7]"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(fs::exists(dir.path() / "step-1.broken"));
}

TEST(Checkpoint, AKillAtAnyMomentLosesNothingCommitted) {
  const Problem p = small();
  const Plan q = plan(p, 1);
  const Scratch dir;
  std::int64_t committed = 0;
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {   // trains and saves after every step until it is killed; tells each commit
      ::close(pipe_ends[0]);
      try {
        TinyRun run(p, q, cpu_backend(CpuStorage::as_planned));
        Packer data = data_of(run);
        if (const auto resumed = load_checkpoint(dir.path(), "x", run.trainer->parameters(), *run.backend)) {
          run.trainer->set_steps_done(resumed->progress.step);
          data.seek(resumed->progress.data);
        }
        for (;;) {
          train(run, data, 1);
          (void)save_checkpoint(dir.path(), "x", {run.trainer->steps_done(), data.position(), 1}, run.trainer->parameters(), *run.backend);
          const std::int64_t done = run.trainer->steps_done();
          if (::write(pipe_ends[1], &done, sizeof(done)) != sizeof(done)) ::_exit(3);
        }
      } catch (const std::exception&) {
        ::_exit(2);
      }
    }
    ::close(pipe_ends[1]);
    std::int64_t done = 0;
    const std::uint64_t commits = 1 + random() % 3;
    for (std::uint64_t c = 0; c < commits && ::read(pipe_ends[0], &done, sizeof(done)) == sizeof(done); ++c) committed = std::max(committed, done);
    ::usleep(static_cast<useconds_t>(random() % 3000));
    ::kill(child, SIGKILL);
    while (::read(pipe_ends[0], &done, sizeof(done)) == sizeof(done)) committed = std::max(committed, done);
    ::close(pipe_ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    TinyRun run(p, q, cpu_backend(CpuStorage::as_planned));
    const auto resumed = load_checkpoint(dir.path(), "x", run.trainer->parameters(), *run.backend);
    ASSERT_TRUE(resumed) << round;
    EXPECT_TRUE(resumed->notes.empty()) << resumed->notes.front();
    EXPECT_GE(resumed->progress.step, committed) << "a committed step is lost";
  }
  EXPECT_GT(committed, 20);
}

/// Files may grow to so many bytes and no further, as where a quota or a disk is full.
TEST(Checkpoint, ASaveThatFindsNoRoomLeavesTheOneBefore) {
  const Problem p = small();
  const Plan q = plan(p, 1);
  const Scratch dir;
  TinyRun run(p, q, cpu_backend(CpuStorage::as_planned));
  Packer data = data_of(run);
  train(run, data, 1);
  (void)save_checkpoint(dir.path(), "x", {1, data.position(), 1}, run.trainer->parameters(), *run.backend);
  const std::vector<float> saved = state(run);
  train(run, data, 1);
  for (const rlim_t room : {0u, 100u, 4096u}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{room, room};
      ::signal(SIGXFSZ, SIG_IGN);
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
      try {
        (void)save_checkpoint(dir.path(), "x", {2, data.position(), 1}, run.trainer->parameters(), *run.backend);
      } catch (const InputError& e) {
        ::_exit(std::string(e.what()).find("cannot write") != std::string::npos ? 7 : 4);
      } catch (...) {
        ::_exit(5);
      }
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 7) << room << " bytes";
    for (const auto& e : fs::directory_iterator(dir.path())) EXPECT_EQ(e.path().filename().string().find(".tmp-"), std::string::npos) << e.path();
    TinyRun after(p, q, cpu_backend(CpuStorage::as_planned));
    const auto resumed = load_checkpoint(dir.path(), "x", after.trainer->parameters(), *after.backend);
    ASSERT_TRUE(resumed);
    EXPECT_TRUE(resumed->notes.empty());
    EXPECT_EQ(resumed->progress.step, 1);
    EXPECT_EQ(state(after), saved);
  }
}

TEST(Durable, ChecksumsAreCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u) << "the check value of the polynomial";
  EXPECT_EQ(crc32c("56789", crc32c("1234")), 0xE3069283u);
}

TEST(Durable, TellsOfEachPieceThatIsOnTheDiskOrWasReadFromIt) {
  const Scratch dir;
  const std::string first(1000, 'a'), second(50, 'b');
  int told = 0;
  const std::uint32_t sum = write_durable(dir.path() / "f", {first, "", second}, [&] { ++told; }, 100);
  EXPECT_EQ(told, 11) << "ten pieces, and the end";
  EXPECT_EQ(read_text_file(dir.path() / "f", 5000), first + second);
  EXPECT_EQ(sum, crc32c(first + second));
  told = 0;
  const Summed is = summed(dir.path() / "f", [&] { ++told; }, 100);
  EXPECT_EQ(told, 11);
  EXPECT_EQ(is.bytes, 1050);
  EXPECT_EQ(is.crc32c, sum);
  EXPECT_THROW((void)summed(dir.path() / "none"), InputError);
  EXPECT_THROW((void)summed(dir.path()), InputError);
  ASSERT_EQ(::mkfifo((dir.path() / "fifo").c_str(), 0600), 0);
  EXPECT_THROW((void)summed(dir.path() / "fifo"), InputError) << "which nobody writes to, and which must not be waited for";
}

TEST(Checkpoint, TellsOfItsWorkWhenItSavesAndWhenItLoads) {
  TinyRun run(small(), plan(small()), cpu_backend(CpuStorage::as_planned));
  const Scratch dir;
  int told = 0;
  (void)save_checkpoint(dir.path(), "x", {1, {}, 1}, run.trainer->parameters(), *run.backend, 2, [&] { ++told; });
  EXPECT_EQ(told, 1) << "the state is less than a piece";
  int worked = 0;
  run.backend->on_work([&](Flops) { ++worked; });
  told = 0;
  ASSERT_TRUE(load_checkpoint(dir.path(), "x", run.trainer->parameters(), *run.backend, [&] { ++told; }));
  const int tensors = worked;   // each is read, then written
  EXPECT_GT(tensors, 10);
  EXPECT_EQ(told, 1 + tensors);
  worked = 0;
  (void)save_checkpoint(dir.path(), "x", {2, {}, 1}, run.trainer->parameters(), *run.backend);
  EXPECT_EQ(worked, tensors);
}

TEST(Durable, NeverWritesOverAFile) {
  const Scratch dir;
  dir.write("a", "before");
  EXPECT_THROW(write_durable(dir.path() / "a", {"after"}), InputError);
  EXPECT_EQ(read_text_file(dir.path() / "a", 100), "before");
}

}  // namespace
}  // namespace moeplan
