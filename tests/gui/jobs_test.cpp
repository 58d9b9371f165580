/// Background jobs: newest request only, cancellation, errors.

#include <atomic>
#include <thread>

#include "gui/jobs/latest_job.hpp"
#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

TEST(GuiJobs, OnlyTheNewestRequestIsAnswered) {
  LatestJob job;
  std::vector<int> answers;
  std::atomic<bool> release{false};
  const auto failed = [](const InputError& e) { ADD_FAILURE() << e.what(); };
  // The first cannot notice its cancellation: it still ends, and its answer must not arrive.
  job.start([&](const Ticket&) { while (!release) std::this_thread::yield(); return 1; }, [&](int v) { answers.push_back(v); }, failed);
  for (int i = 2; i < 10; ++i) job.start([i](const Ticket&) { return i; }, [&](int v) { answers.push_back(v); }, failed);
  release = true;
  ASSERT_TRUE(eventually([&] { return !answers.empty(); }));
  QTest::qWait(50);
  EXPECT_EQ(answers, std::vector<int>{9});
  EXPECT_FALSE(job.running());
}

TEST(GuiJobs, ACancelledJobStopsAndSaysNothing) {
  LatestJob job;
  std::atomic<bool> begun{false}, stopped{false};
  bool answered = false;
  job.start([&](const Ticket& ticket) {
    struct Note { std::atomic<bool>& flag; ~Note() { flag = true; } } note{stopped};
    begun = true;
    for (;;) { ticket.stopIfCancelled(); std::this_thread::yield(); }
    return 0;
  }, [&](int) { answered = true; }, [&](const InputError&) { answered = true; });
  EXPECT_TRUE(job.running());
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  job.cancel();
  EXPECT_FALSE(job.running());
  ASSERT_TRUE(eventually([&] { return stopped.load(); }));
  QTest::qWait(20);
  EXPECT_FALSE(answered);
}

TEST(GuiJobs, ErrorsOfTheInputAndBugsComeBackAsLines) {
  LatestJob job;
  QString line, bug;
  QObject::connect(&job, &LatestJob::broke, [&](const QString& text) { bug = text; });
  job.start([](const Ticket&) -> int { throw InputError("file", "is empty", "fill it"); }, [](int) {}, [&](const InputError& e) { line = QString::fromUtf8(e.what()); });
  ASSERT_TRUE(eventually([&] { return !line.isEmpty(); }));
  EXPECT_TRUE(line.contains(QStringLiteral("is empty")));
  job.start([](const Ticket&) -> int { throw std::logic_error("index"); }, [](int) {}, [&](const InputError&) { ADD_FAILURE(); });
  ASSERT_TRUE(eventually([&] { return !bug.isEmpty(); }));
  EXPECT_TRUE(bug.contains(QStringLiteral("please report it: index")));
}

}  // namespace
}  // namespace moeplan::gui_test
