#pragma once
/// A child process that speaks JSON lines: `moeplan run --json`, `moeplan calibrate --json`. What it prints is untrusted: lines are capped,
/// anything that is no JSON object is passed on as text. Cancelling asks it to stop and save (SIGINT), then insists.

#include <QObject>
#include <QProcess>
#include <QTimer>

#include "core/json.hpp"

namespace moeplan::gui {

class Child : public QObject {
  Q_OBJECT

 public:
  explicit Child(QObject* parent = nullptr);
  ~Child() override;
  void start(const QString& program, const QStringList& arguments);
  void cancel();
  [[nodiscard]] bool running() const { return process_.state() != QProcess::NotRunning; }

 Q_SIGNALS:
  void object(const moeplan::Json& line);
  void text(const QString& line);
  /// One line: done, cancelled, refused (its own words), crashed. `ok`: exit code 0.
  void ended(bool ok, const QString& line);
  void runningChanged();

 private:
  void read();
  void take(const QByteArray& line);
  void finish(const QString& how);

  QProcess process_;
  QTimer insist_;
  QByteArray out_, err_;
  QString lastError_;
  bool cancelled_ = false, overlong_ = false;
};

}  // namespace moeplan::gui
