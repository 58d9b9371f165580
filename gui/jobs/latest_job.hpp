#pragma once
/// Background work that cannot deliver a stale answer: each job object remembers only its newest request. Starting again cancels
/// what runs and forgets what waits; an answer reaches the GUI thread only if no newer request was made meanwhile.

#include <QObject>
#include <QString>
#include <QThreadPool>
#include <atomic>
#include <functional>
#include <memory>

#include "core/error.hpp"

namespace moeplan::gui {

/// Thrown out of work that noticed its cancellation; nothing is delivered.
struct Cancelled {};

/// Asked by the work from any thread.
class Ticket {
 public:
  [[nodiscard]] bool cancelled() const { return flag_->load(std::memory_order_relaxed); }
  void stopIfCancelled() const {
    if (cancelled()) throw Cancelled{};
  }

 private:
  friend class LatestJob;
  std::shared_ptr<std::atomic<bool>> flag_ = std::make_shared<std::atomic<bool>>(false);
};

class LatestJob : public QObject {
  Q_OBJECT

 public:
  explicit LatestJob(QObject* parent = nullptr);
  /// Cancels and waits.
  ~LatestJob() override;

  /// Runs `work(ticket)` on the job's own thread, then `done(answer)` on this object's thread; errors of the input go to `failed`.
  template <class Work, class Done>
  void start(Work work, Done done, std::function<void(const InputError&)> failed) {
    enqueue([this, work = std::move(work), done = std::move(done), failed = std::move(failed)](const Ticket& ticket) {
      auto answer = std::make_shared<decltype(work(ticket))>();
      run(ticket, [&] { *answer = work(ticket); }, [done, answer] { done(std::move(*answer)); }, failed);
    });
  }

  void cancel();
  [[nodiscard]] bool running() const { return running_; }

 Q_SIGNALS:
  void runningChanged(bool running);
  /// A bug of ours in the work: shown, never swallowed.
  void broke(const QString& message);

 private:
  void enqueue(std::function<void(const Ticket&)> body);
  void run(const Ticket& ticket, const std::function<void()>& work, std::function<void()> done, std::function<void(const InputError&)> failed);
  void deliver(const Ticket& ticket, std::function<void()> action);
  void setRunning(bool running);

  QThreadPool pool_;
  Ticket current_;
  bool running_ = false;
};

}  // namespace moeplan::gui
