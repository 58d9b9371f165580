#include "gui/app/window.hpp"

#include <QApplication>
#include <QCloseEvent>
#include <QDragEnterEvent>
#include <QLabel>
#include <QListWidget>
#include <QMenuBar>
#include <QMimeData>
#include <QProgressBar>
#include <QStackedWidget>
#include <QStatusBar>
#include <QToolButton>
#include <QVBoxLayout>
#include <cmath>

#include "core/show.hpp"
#include "gui/models/session.hpp"
#include "gui/pages/forecast_panel.hpp"
#include "gui/pages/pages.hpp"
#include "gui/widgets/elided_label.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {

Window::Window(WindowOptions options) : options_(std::move(options)), session_(new Session(options_.configs, this)) {
  setWindowTitle(tr("moeplan"));
  setAcceptDrops(true);
  auto* centre = new QWidget;
  auto* column = new QVBoxLayout(centre);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  auto* bannerRow = new QHBoxLayout;
  bannerRow->setContentsMargins(8, 0, 8, 0);
  banner_ = new QLabel;
  banner_->setWordWrap(true);
  banner_->setTextFormat(Qt::PlainText);
  banner_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
  banner_->setAccessibleName(tr("Message"));
  banner_->setContentsMargins(0, 6, 0, 6);
  closeBanner_ = new QToolButton;
  closeBanner_->setText(QStringLiteral("✕"));
  closeBanner_->setAutoRaise(true);
  closeBanner_->setAccessibleName(tr("Dismiss the message"));
  connect(closeBanner_, &QToolButton::clicked, this, [this] { showMessage({}); });
  bannerRow->addWidget(banner_, 1);
  bannerRow->addWidget(closeBanner_);
  column->addLayout(bannerRow);
  auto* row = new QHBoxLayout;
  column->addLayout(row, 1);
  list_ = new QListWidget;
  list_->setAccessibleName(tr("Pages"));
  list_->setFrameShape(QFrame::NoFrame);
  list_->setSpacing(2);
  list_->setSizeAdjustPolicy(QAbstractScrollArea::AdjustToContents);
  list_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  list_->setSizePolicy(QSizePolicy::Fixed, QSizePolicy::Expanding);
  stack_ = new QStackedWidget;
  row->addWidget(list_);
  row->addWidget(stack_, 1);
  setCentralWidget(centre);
  status_ = new ElidedLabel;
  status_->setAccessibleName(tr("Status"));
  freshness_ = new QLabel;
  freshness_->setAccessibleName(tr("Search"));
  progress_ = new QProgressBar;
  progress_->setRange(0, 1000);
  progress_->setTextVisible(false);
  progress_->setMaximumWidth(fontMetrics().averageCharWidth() * 20);
  progress_->setAccessibleName(tr("Progress of the search"));
  cancel_ = new QToolButton;
  cancel_->setText(tr("Cancel"));
  cancel_->setAccessibleName(tr("Cancel the search"));
  connect(cancel_, &QToolButton::clicked, session_, &Session::cancelSearch);
  statusBar()->addWidget(status_, 1);
  for (QWidget* w : std::initializer_list<QWidget*>{freshness_, progress_, cancel_}) statusBar()->addPermanentWidget(w);
  statusBar()->setSizeGripEnabled(false);
  statusBar()->setContentsMargins(6, 0, 10, 0);

  for (Page* page : makePages(session_, options_.program)) addPage(page);
  connect(list_, &QListWidget::currentRowChanged, this, [this](int at) {
    if (at >= 0) stack_->setCurrentIndex(at);
  });
  makeActions();
  for (const auto signal : {&Session::estimateChanged, &Session::draftChanged, &Session::searchChanged, &Session::resultChanged, &Session::issuesChanged, &Session::pinnedChanged}) connect(session_, signal, this, &Window::refreshStatus);
  connect(session_, &Session::searchProgress, this, [this](double share) {
    progress_->setValue(static_cast<int>(1000 * share));
    const double left = share > 0.02 ? static_cast<double>(searched_.elapsed()) / 1000 * (1 - share) / share : 0;
    freshness_->setText(left > 0 ? tr("searching: %1 %, %2 s left").arg(std::lround(100 * share)).arg(std::max(1L, std::lround(left))) : tr("searching …"));
  });
  connect(session_, &Session::searchChanged, this, [this] { searched_.start(); });
  connect(session_, &Session::message, this, [this](const QString& line) { showMessage(line); });
  auto* saver = new QTimer(this);
  saver->setSingleShot(true);
  saver->setInterval(1500);
  connect(saver, &QTimer::timeout, this, &Window::autosave);
  connect(session_, &Session::draftChanged, saver, qOverload<>(&QTimer::start));
  connect(session_, &Session::selectionChanged, saver, qOverload<>(&QTimer::start));
  connect(session_, &Session::pinnedChanged, saver, qOverload<>(&QTimer::start));
  showMessage({});
  showPage(0);
  refreshStatus();
}

Window::~Window() = default;

void Window::addPage(Page* page) {
  pages_.push_back(page);
  stack_->addWidget(page);
  auto* item = new QListWidgetItem(page->title(), list_);
  item->setToolTip(tr("%1 (Ctrl+%2)").arg(page->purpose()).arg(pages_.size()));
}

void Window::showPage(int index) {
  if (index < 0 || index >= static_cast<int>(pages_.size())) return;
  list_->setCurrentRow(index);
  pages_[static_cast<std::size_t>(index)]->start()->setFocus(Qt::ShortcutFocusReason);
}

int Window::currentPage() const { return stack_->currentIndex(); }

void Window::setLook(Look look) {
  look_ = look;
  applyLook(look_, scale_);
  refreshStatus();
}

void Window::setScale(double scale) {
  scale_ = std::clamp(scale, 1.0, 3.0);
  applyLook(look_, scale_);
  progress_->setMaximumWidth(fontMetrics().averageCharWidth() * 20);
  list_->updateGeometry();
  refreshStatus();
}

std::vector<Command> Window::commands() const {
  std::vector<Command> out;
  for (const auto& [group, menu] : menus_)
    for (QAction* a : menu->actions())
      if (!a->isSeparator() && !a->menu()) out.push_back({a, group});
  for (const Page* page : pages_)
    for (QAction* a : page->actions()) out.push_back({a, page->title()});
  return out;
}

void Window::showMessage(const QString& line, bool bad) {
  banner_->setText(line);
  banner_->setVisible(!line.isEmpty());
  closeBanner_->setVisible(!line.isEmpty());
  QPalette p = palette();
  p.setColor(QPalette::WindowText, bad ? badColour(palette()) : goodColour(palette()));
  banner_->setPalette(p);
}

QString Window::message() const { return banner_->text(); }

void Window::refreshStatus() {
  const auto& e = session_->estimate();
  const Verdict verdict = verdictOf(*session_);
  QString text = QString::fromStdString(session_->draft().model) + QStringLiteral(" · ") + QString::fromStdString(session_->draft().cluster.value_or(session_->draft().device.value_or("")));
  if (e) {
    text = QStringLiteral("%1 on %2").arg(QString::fromStdString(e->problem->model_name), QString::fromStdString(e->problem->cluster.name));
    if (e->ranked) {
      const auto& r = *e->ranked;
      const Bytes have = e->problem->cluster.device.memory;
      text += QStringLiteral("  ·  %1  ·  %2 a step").arg(QString::fromStdString(layout_text(r.plan.parallelism)), QString::fromStdString(duration(r.forecast.step)));
      text += tr("  ·  %1, %2 free  ·  %3 of the time from data sheets only").arg(verdict.grade == Verdict::Grade::bad ? tr("✘ does not fit") : verdict.grade == Verdict::Grade::tight ? tr("▲ tight") : tr("✔ fits"),
                                                                             QString::fromStdString(percent(1 - r.forecast.memory_p95.peak() / have)), QString::fromStdString(percent(r.forecast.basis[2])));
    } else {
      text += QStringLiteral("  ·  ") + verdict.text;
    }
    if (session_->pinned()) text += tr("  ·  A pinned");
  }
  if (!session_->issues().empty()) text = QStringLiteral("✘ ") + session_->issues().front().message;
  // One line whatever the width; the whole text is the tool tip.
  status_->setText(text);
  status_->setToolTip(text);
  status_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
  const bool searching = session_->searching();
  progress_->setVisible(searching);
  cancel_->setVisible(searching);
  if (!searching) progress_->setValue(0);
  const auto& result = session_->result();
  freshness_->setText(searching ? tr("searching …") : session_->resultStale() || session_->estimateStale() ? tr("▲ stale") : result ? tr("%L1 of %L2 plans fit").arg(result->answer.feasible).arg(result->answer.searched) : QString());
}

void Window::guarded(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& e) {
    showMessage(QString::fromUtf8(e.what()));
  } catch (const std::filesystem::filesystem_error& e) {
    showMessage(QString::fromStdString(e.path1().string() + ": " + e.code().message()));
  } catch (const std::exception& e) {
    showMessage(tr("internal error, please report it: %1").arg(QString::fromUtf8(e.what())));
  }
}

void Window::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void Window::dropEvent(QDropEvent* event) {
  for (const QUrl& url : event->mimeData()->urls())
    if (url.isLocalFile()) openFile(url.toLocalFile());
  event->acceptProposedAction();
}

void Window::showWorkedExample() {
  session_->restore(Draft{}, workedExample(), std::nullopt);
}

}  // namespace moeplan::gui
