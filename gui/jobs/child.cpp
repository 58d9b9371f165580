#include "gui/jobs/child.hpp"

#include <csignal>

#include "core/error.hpp"

namespace moeplan::gui {
namespace {

constexpr qsizetype kLongest = 8 << 20;

}  // namespace

Child::Child(QObject* parent) : QObject(parent) {
  insist_.setSingleShot(true);
  insist_.setInterval(10000);
  connect(&insist_, &QTimer::timeout, this, [this] { process_.kill(); });
  connect(&process_, &QProcess::readyReadStandardOutput, this, &Child::read);
  connect(&process_, &QProcess::readyReadStandardError, this, [this] {
    err_ += process_.readAllStandardError();
    for (qsizetype end; (end = err_.indexOf('\n')) >= 0; err_.remove(0, end + 1)) {
      lastError_ = QString::fromUtf8(err_.left(std::min<qsizetype>(end, 3000)));
      Q_EMIT text(lastError_);
    }
    if (err_.size() > kLongest) err_.clear();
  });
  connect(&process_, &QProcess::started, this, &Child::runningChanged);
  connect(&process_, &QProcess::errorOccurred, this, [this](QProcess::ProcessError e) {
    if (e == QProcess::FailedToStart) finish(tr("%1: cannot be started (%2)").arg(process_.program(), process_.errorString()));
  });
  connect(&process_, &QProcess::finished, this, [this](int code, QProcess::ExitStatus status) {
    read();
    if (!out_.isEmpty()) take(out_);
    out_.clear();
    const QString said = lastError_.isEmpty() ? QString() : tr("; it said: %1").arg(lastError_);
    if (cancelled_) finish(tr("cancelled"));
    else if (status == QProcess::CrashExit) finish(tr("the child process crashed (signal %1); what it had reported is kept%2").arg(code).arg(said));
    else if (code == 0) finish({});
    else if (code == 2 && !lastError_.isEmpty()) finish(lastError_);
    else finish(tr("the child process ended with exit code %1; what it had reported is kept%2").arg(code).arg(said));
  });
}

Child::~Child() {
  process_.disconnect(this);
  if (running()) {
    process_.terminate();
    if (!process_.waitForFinished(2000)) process_.kill(), process_.waitForFinished(1000);
  }
}

void Child::start(const QString& program, const QStringList& arguments) {
  if (running()) return;
  out_.clear(), err_.clear(), lastError_.clear();
  cancelled_ = overlong_ = false;
  process_.start(program, arguments, QIODevice::ReadOnly);
}

void Child::cancel() {
  if (!running()) return;
  cancelled_ = true;
  if (process_.processId() > 0) ::kill(static_cast<pid_t>(process_.processId()), SIGINT);
  insist_.start();
}

void Child::read() {
  out_ += process_.readAllStandardOutput();
  qsizetype from = 0;
  for (qsizetype end; (end = out_.indexOf('\n', from)) >= 0; from = end + 1) {
    if (!overlong_) take(out_.mid(from, end - from));
    overlong_ = false;
  }
  out_.remove(0, from);
  if (out_.size() > kLongest) {
    Q_EMIT text(tr("a line of more than 8 MiB is left out"));
    out_.clear();
    overlong_ = true;
  }
}

void Child::take(const QByteArray& line) {
  if (line.trimmed().isEmpty()) return;
  try {
    const Json json = parse_json(std::string_view(line.constData(), static_cast<std::size_t>(line.size())), "child process", {.tolerate_nonfinite_literals = true});
    if (json.is_object()) {
      Q_EMIT object(json);
      return;
    }
  } catch (const InputError&) {
    // Not JSON: text for the log.
  }
  Q_EMIT text(QString::fromUtf8(line.left(3000)));
}

void Child::finish(const QString& how) {
  insist_.stop();
  Q_EMIT runningChanged();
  Q_EMIT ended(how.isEmpty(), how.isEmpty() ? tr("done") : how);
}

}  // namespace moeplan::gui
