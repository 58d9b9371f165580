#pragma once
/// The selected plan in numbers: verdict with margin and confidence, speed and money, memory by category, time by category; each
/// against the pinned plan A where there is one.

#include <QWidget>

class QLabel;
class QGridLayout;

namespace moeplan::gui {

class BarList;
class Session;

class ForecastPanel : public QWidget {
  Q_OBJECT

 public:
  explicit ForecastPanel(Session* session, QWidget* parent = nullptr);
  [[nodiscard]] BarList* memory() { return memory_; }
  [[nodiscard]] BarList* time() { return time_; }

 private:
  void refresh();
  void refreshStale();
  Session* session_;
  QLabel *verdict_, *layout_, *figures_, *basis_, *stale_;
  BarList *memory_, *time_;
};

/// "fits: 19.2 GB (12.7 %) free at the 95th percentile" and the colour that goes with it.
struct Verdict {
  QString text;
  enum class Grade : std::uint8_t { good, tight, bad, unknown } grade = Grade::unknown;
};
[[nodiscard]] Verdict verdictOf(const Session& session);

}  // namespace moeplan::gui
