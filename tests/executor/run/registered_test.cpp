/// Memory that collectives use is known to every communicator beforehand, or to none; a rank that cannot is enough for none.

#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

/// What one rank's communicators were told.
struct Told {
  std::vector<std::int64_t> bytes;
  std::size_t living = 0;      ///< registrations
  bool freed_before = false;   ///< memory that was still registered
};

/// In-process ranks that have something to register with; `refuses`: not this one.
class Registering final : public Communicator {
 public:
  Registering(Communicator& c, Told& told, bool refuses) : Communicator(c.name(), c.rank(), c.world_ranks()), c_(&c), told_(told), refuses_(refuses) {}
  Registering(std::unique_ptr<Communicator> c, Told& told, bool refuses) : Registering(*c, told, refuses) { own_ = std::move(c); }
  void abort(const std::string& reason) noexcept override { c_->abort(reason); }

 private:
  std::optional<Registration> do_register(const std::shared_ptr<void>& memory, std::int64_t bytes) override {
    if (refuses_) return Registration{{}, "this one cannot"};
    told_.bytes.push_back(bytes);
    ++told_.living;
    return Registration{std::shared_ptr<void>(memory.get(), [told = &told_, alone = std::weak_ptr<void>(memory)](void*) {
                          --told->living;
                          told->freed_before |= alone.expired();
                        }),
                        {}};
  }
  void do_all_reduce(const Call& k, void* data) override { c_->all_reduce(data, k.count, k.dtype, k.reduction); }
  void do_all_gather(const Call& k, const void* part, void* whole) override { c_->all_gather(part, whole, k.count, k.dtype); }
  void do_reduce_scatter(const Call& k, const void* whole, void* part) override { c_->reduce_scatter(whole, part, k.count, k.dtype, k.reduction); }
  void do_all_to_all(const Call& k, const void* send, std::span<const std::int64_t> sent, void* receive, std::span<const std::int64_t> received) override {
    c_->all_to_all(send, sent, receive, received, k.dtype);
  }
  void do_send_receive(const Call&, std::span<const Transfer> sends, std::span<const Transfer> receives) override { c_->send_receive(sends, receives); }
  void do_barrier(const Call&) override { c_->barrier(); }
  std::unique_ptr<Communicator> do_split(const Call&, std::optional<int> colour, int key, const std::string& label) override {
    return std::make_unique<Registering>(c_->split(colour, key, label), told_, refuses_);
  }
  void do_gather_words(const Call&, std::span<const std::int64_t> words, std::span<std::int64_t> all) override { std::ranges::copy(c_->gather_words(words), all.begin()); }
  void do_wait(const Call&) override { c_->wait(); }

  std::unique_ptr<Communicator> own_;
  Communicator* c_;
  Told& told_;
  bool refuses_;
};

struct Ran {
  std::vector<double> losses;   ///< rank 0's
  std::vector<Told> told;
  std::vector<Walk::Registered> registered;
  std::vector<std::int64_t> arena, staged;
  std::vector<std::size_t> living;   ///< while the trainers lived
};

Ran run(const Problem& p, const Plan& q, const std::vector<std::vector<Batch>>& batches, bool registers, int refusing = -1) {
  const auto ranks = static_cast<std::size_t>(q.parallelism.world());
  Ran out{.losses = {}, .told = std::vector<Told>(ranks), .registered = std::vector<Walk::Registered>(ranks), .arena = std::vector<std::int64_t>(ranks), .staged = std::vector<std::int64_t>(ranks), .living = std::vector<std::size_t>(ranks)};
  run_ranks(q.parallelism.world(), [&](Communicator& c) {
    const auto r = static_cast<std::size_t>(c.rank());
    Registering world(c, out.told[r], c.rank() == refusing);
    const auto backend = cpu_backend(CpuStorage::wide);
    TrainOptions options;
    options.walk.registers = registers;
    Trainer trainer(p, q, *backend, options, &world);
    randomise(trainer.parameters(), options.seed, p.model, *backend);
    stir(trainer.parameters(), *backend);
    for (const auto& all : batches) {
      const StepReport report = trainer.step({all[static_cast<std::size_t>(trainer.parameters().place().data_index())]});
      if (r == 0) out.losses.push_back(report.loss);
    }
    out.registered[r] = trainer.walk().registered();
    out.arena[r] = trainer.walk().arena().size.value, out.staged[r] = trainer.walk().staged().value;
    out.living[r] = out.told[r].living;
  });
  return out;
}

struct RegisteredMemory : ::testing::Test {
  Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json")), lora(8));
  Plan q = on_ranks(p, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, 1);
  std::vector<std::vector<Batch>> batches = data(p, 2, 4);
};

// World, expert group and the expert weights' shards: three communicators, two pieces of memory each.
TEST_F(RegisteredMemory, IsTheArenaAndTheExchangeBufferWithEveryCommunicatorWhileTheTrainerLives) {
  const Ran with = run(p, q, batches, true), without = run(p, q, batches, false);
  EXPECT_EQ(with.losses, without.losses);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(with.told[r].bytes, (std::vector<std::int64_t>{with.arena[r], with.arena[r], with.arena[r], with.staged[r], with.staged[r], with.staged[r]}));
    EXPECT_EQ(with.living[r], 6u);
    EXPECT_EQ(with.told[r].living, 0u);
    EXPECT_FALSE(with.told[r].freed_before);
    EXPECT_EQ(with.registered[r].bytes.value, with.arena[r] + with.staged[r]);
    EXPECT_EQ(with.registered[r].communicators, 3u);
    EXPECT_EQ(with.registered[r].refused, "");
    EXPECT_EQ(without.told[r].bytes, std::vector<std::int64_t>{}) << "asked not to";
  }
}

TEST_F(RegisteredMemory, IsNoneWhereOneRankCannot) {
  const Ran some = run(p, q, batches, true, 3), without = run(p, q, batches, false);
  EXPECT_EQ(some.losses, without.losses);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(some.registered[r].refused.empty(), false);
    EXPECT_EQ(some.told[r].living, 0u);
  }
  EXPECT_EQ(some.registered[3].refused, "this one cannot");
  EXPECT_EQ(some.registered[3].communicators, 0u);
  EXPECT_EQ(some.registered[2].refused, "rank 3 could not");
  EXPECT_EQ(some.registered[2].communicators, 1u) << "with rank 0, of the same expert shard";
}

TEST_F(RegisteredMemory, IsLetGoOfWhereARunFails) {
  std::vector<Told> told(4);
  EXPECT_THROW(run_ranks(4,
                         [&](Communicator& c) {
                           Registering world(c, told[static_cast<std::size_t>(c.rank())], false);
                           const auto backend = cpu_backend(CpuStorage::wide);
                           Trainer trainer(p, q, *backend, {}, &world);
                           if (c.rank() == 1) throw std::runtime_error("struck");
                           trainer.step({batches[0][static_cast<std::size_t>(trainer.parameters().place().data_index())]});
                         }),
               std::runtime_error);
  for (const Told& t : told) {
    EXPECT_GT(t.bytes.size(), 0u);
    EXPECT_EQ(t.living, 0u);
    EXPECT_FALSE(t.freed_before);
  }
}

}  // namespace
}  // namespace moeplan
