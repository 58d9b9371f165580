#include "gui/jobs/latest_job.hpp"

namespace moeplan::gui {

LatestJob::LatestJob(QObject* parent) : QObject(parent) {
  // Two threads: a request need not wait for the one before it to notice that it is cancelled.
  pool_.setMaxThreadCount(2);
  pool_.setExpiryTimeout(5000);
}

LatestJob::~LatestJob() {
  current_.flag_->store(true);
  pool_.clear();
  pool_.waitForDone();
}

void LatestJob::cancel() {
  current_.flag_->store(true);
  pool_.clear();
  setRunning(false);
}

void LatestJob::enqueue(std::function<void(const Ticket&)> body) {
  current_.flag_->store(true);
  pool_.clear();
  current_ = Ticket{};
  setRunning(true);
  pool_.start([body = std::move(body), ticket = current_] { body(ticket); });
}

void LatestJob::run(const Ticket& ticket, const std::function<void()>& work, std::function<void()> done, std::function<void(const InputError&)> failed) {
  if (ticket.cancelled()) return;
  try {
    work();
    deliver(ticket, std::move(done));
  } catch (const Cancelled&) {
  } catch (const InputError& e) {
    deliver(ticket, [failed = std::move(failed), e] { failed(e); });
  } catch (const std::exception& e) {
    deliver(ticket, [this, text = QString::fromUtf8(e.what())] { Q_EMIT broke(tr("internal error, please report it: %1").arg(text)); });
  }
}

void LatestJob::deliver(const Ticket& ticket, std::function<void()> action) {
  QMetaObject::invokeMethod(this, [this, ticket, action = std::move(action)] {
    if (ticket.cancelled()) return;
    setRunning(false);
    action();
  }, Qt::QueuedConnection);
}

void LatestJob::setRunning(bool running) {
  if (running_ == running) return;
  running_ = running;
  Q_EMIT runningChanged(running);
}

}  // namespace moeplan::gui
