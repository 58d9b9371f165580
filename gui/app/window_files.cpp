#include <QApplication>
#include <QClipboard>
#include <QCloseEvent>
#include <QDir>
#include <QFile>
#include <QFileDialog>
#include <QFileInfo>
#include <QInputDialog>
#include <QMenu>
#include <QMenuBar>
#include <QPushButton>
#include <QSettings>
#include <QVBoxLayout>

#include "gui/app/export.hpp"
#include "gui/app/window.hpp"
#include "gui/models/project.hpp"
#include "gui/widgets/chart_numbers.hpp"
#include "gui/widgets/table_text.hpp"
#include "planner/describe.hpp"

namespace moeplan::gui {
namespace {

QString named(const QString& name, const char* ending) { return QString(name).replace(QLatin1Char(' '), QLatin1Char('-')) + QLatin1String(ending); }

/// One of a page's charts or tables: asked for where there are several, nothing if the question is cancelled.
template <class Named>
std::optional<Named> chosen(QWidget* parent, const QString& title, const QString& what, const std::vector<Named>& all) {
  if (all.empty()) throw InputError(title.toStdString(), "this page has none", "choose another page");
  if (all.size() == 1) return all.front();
  QStringList names;
  for (const Named& each : all) names << each.name;
  bool ok = false;
  const QString name = QInputDialog::getItem(parent, title, what, names, 0, false, &ok);
  return ok ? std::optional(all[static_cast<std::size_t>(names.indexOf(name))]) : std::nullopt;
}

}  // namespace

QAction* Window::add(QMenu* menu, const QString& text, const QKeySequence& keys, std::function<void()> run) {
  QAction* action = menu->addAction(text);
  action->setShortcut(keys);
  connect(action, &QAction::triggered, this, [this, run = std::move(run)] { guarded(run); });
  return action;
}

void Window::makeActions() {
  const auto menu = [&](const QString& title) {
    QMenu* m = menuBar()->addMenu(title);
    menus_.emplace_back(QString(title).remove(QLatin1Char('&')), m);
    return m;
  };
  QMenu* file = menu(tr("&File"));
  add(file, tr("&Open …"), QKeySequence::Open, [this] {
    const QString name = QFileDialog::getOpenFileName(this, tr("Open a project, plan, model, timeline, measured run or expert load"), {}, tr("JSON (*.json *.moeplan);;Everything (*)"));
    if (!name.isEmpty()) openFile(name);
  });
  recent_ = file->addMenu(tr("Open &recent"));
  rememberRecent({});
  add(file, tr("&Save project"), QKeySequence::Save, [this] {
    const QString name = file_.isEmpty() ? QFileDialog::getSaveFileName(this, tr("Save project"), QStringLiteral("project.moeplan"), tr("Projects (*.moeplan)")) : file_;
    if (!name.isEmpty()) save(name);
  });
  add(file, tr("Save project &as …"), QKeySequence::SaveAs, [this] {
    const QString name = QFileDialog::getSaveFileName(this, tr("Save project"), QStringLiteral("project.moeplan"), tr("Projects (*.moeplan)"));
    if (!name.isEmpty()) save(name);
  });
  file->addSeparator();
  add(file, tr("Export plan for the command line …"), QKeySequence(tr("Ctrl+Shift+O")), [this] {
    if (!session_->estimate() || !session_->estimate()->ranked) throw InputError("plan", "there is none to write", "choose a problem that a plan fits");
    const QString name = QFileDialog::getSaveFileName(this, tr("Export plan"), QStringLiteral("plan.json"), tr("Plans (*.json)"));
    if (!name.isEmpty()) writeText(name, QByteArray::fromStdString(plan_file(*session_->estimate()->problem, *session_->estimate()->ranked).dump(1) + "\n"));
  });
  add(file, tr("Export &chart …"), QKeySequence(tr("Ctrl+E")), [this] { exportDrawing(); });
  add(file, tr("Export &table as CSV or JSON …"), QKeySequence(tr("Ctrl+Shift+E")), [this] { exportTable(); });
  add(file, tr("Export one-page PDF re&port …"), QKeySequence::Print, [this] { exportReport(); });
  file->addSeparator();
  add(file, tr("&Worked example: K3 on 128 H200"), {}, [this] { showWorkedExample(); });
  add(file, tr("&Quit"), QKeySequence::Quit, [this] { close(); });

  QMenu* edit = menu(tr("&Edit"));
  QAction* undo = session_->undoStack()->createUndoAction(this, tr("&Undo"));
  QAction* redo = session_->undoStack()->createRedoAction(this, tr("&Redo"));
  undo->setShortcut(QKeySequence::Undo);
  redo->setShortcuts({QKeySequence(tr("Ctrl+Shift+Z")), QKeySequence(tr("Ctrl+Y"))});
  edit->addAction(undo);
  edit->addAction(redo);
  edit->addSeparator();
  add(edit, tr("Copy as CLI &command"), QKeySequence(tr("Ctrl+Shift+C")), [this] {
    QApplication::clipboard()->setText(QString::fromStdString(session_->command()));
    showMessage(tr("copied: %1").arg(QString::fromStdString(session_->command())), false);
  });
  add(edit, tr("Copy the plan as &JSON"), QKeySequence(tr("Ctrl+Shift+J")), [this] {
    if (!session_->estimate() || !session_->estimate()->ranked) throw InputError("plan", "there is none to copy");
    QApplication::clipboard()->setText(QString::fromStdString(plan_json(*session_->estimate()->ranked).dump(2)));
    showMessage(tr("copied the selected plan as JSON"), false);
  });

  QMenu* plan = menu(tr("&Plan"));
  add(plan, tr("&Search now"), QKeySequence(tr("Ctrl+R")), [this] { session_->searchNow(); });
  add(plan, tr("&Cancel the search"), QKeySequence(tr("Ctrl+.")), [this] { session_->cancelSearch(); });
  add(plan, tr("&Pin as A, or let go"), QKeySequence(tr("Ctrl+Shift+A")), [this] { session_->togglePin(); });
  add(plan, tr("Select the &best plan"), QKeySequence(tr("Ctrl+B")), [this] { session_->select(0); });

  QMenu* view = menu(tr("&View"));
  for (std::size_t i = 0; i < pages_.size(); ++i) add(view, pages_[i]->title(), QKeySequence(QStringLiteral("Ctrl+%1").arg(i + 1)), [this, i] { showPage(static_cast<int>(i)); });
  view->addSeparator();
  add(view, tr("The &numbers of a chart …"), QKeySequence(tr("Ctrl+T")), [this] { showNumbers(); });
  view->addSeparator();
  add(view, tr("&Larger"), QKeySequence::ZoomIn, [this] { setScale(scale_ + 0.25); });
  add(view, tr("&Smaller"), QKeySequence::ZoomOut, [this] { setScale(scale_ - 0.25); });
  add(view, tr("Scale 100 %"), QKeySequence(tr("Ctrl+0")), [this] { setScale(1); });
  add(view, tr("Scale 200 %"), {}, [this] { setScale(2); });
  add(view, tr("Scale 300 %"), {}, [this] { setScale(3); });
  view->addSeparator();
  add(view, tr("Colours of the system"), {}, [this] { setLook(Look::system); });
  add(view, tr("Light"), QKeySequence(tr("Ctrl+Shift+L")), [this] { setLook(Look::light); });
  add(view, tr("Dark"), QKeySequence(tr("Ctrl+Shift+D")), [this] { setLook(Look::dark); });
  add(view, tr("High contrast"), {}, [this] { setLook(Look::high_contrast); });

  QMenu* help = menu(tr("&Help"));
  QAction* palette = add(help, tr("Command &palette"), QKeySequence(tr("Ctrl+K")), [this] { (new CommandPalette(commands(), this))->open(); });
  palette->setShortcuts({QKeySequence(tr("Ctrl+K")), QKeySequence(tr("Ctrl+Shift+P"))});
  QAction* keys = add(help, tr("&Keys"), QKeySequence(Qt::Key_Question), [this] { cheatSheet(commands(), this)->open(); });
  keys->setShortcuts({QKeySequence(Qt::Key_Question), QKeySequence(Qt::Key_F1)});
  add(help, tr("Dismiss the message"), {}, [this] { showMessage({}); });
  add(help, tr("&About"), {}, [this] { showMessage(tr("moeplan-gui: free software under GPL-3.0-or-later (it uses QCustomPlot); planner and simulator are Apache-2.0"), false); });
}

void Window::exportDrawing() {
  const auto all = pages_[static_cast<std::size_t>(currentPage())]->drawings();
  const auto which = chosen(this, tr("Export chart"), tr("Chart"), all);
  if (!which) return;
  const QString name = QFileDialog::getSaveFileName(this, tr("Export chart"), named(which->name, ".png"), tr("PNG (*.png);;PNG, twice the pixels (*.png);;PNG, four times the pixels (*.png);;SVG (*.svg);;PDF (*.pdf)"), &exportKind_);
  if (!name.isEmpty()) writeDrawing(*which, name, which->widget->size(), exportKind_.contains(QStringLiteral("four")) ? 4 : exportKind_.contains(QStringLiteral("twice")) ? 2 : 1);
}

void Window::exportTable() {
  const auto all = pages_[static_cast<std::size_t>(currentPage())]->tables();
  if (const auto which = chosen(this, tr("Export table"), tr("Table"), all)) exportTable(*which->table, which->name);
}

void Window::exportTable(const TableView& table, const QString& title) {
  const QString name = QFileDialog::getSaveFileName(this, tr("Export table"), named(title, ".csv"), tr("CSV (*.csv);;JSON (*.json)"));
  if (!name.isEmpty()) writeTable(table, name);
}

void Window::writeTable(const TableView& table, const QString& file) {
  auto* text = new TableTextJob(table, file.endsWith(QLatin1String(".json")) ? TableFormat::json : TableFormat::csv, this);
  connect(text, &TableTextJob::progress, this, [this, file](int percent) { showMessage(tr("writing %1: %2 %").arg(file).arg(percent), false); });
  connect(text, &TableTextJob::failed, this, [this](const QString& line) { showMessage(line); });
  connect(text, &TableTextJob::done, this, [this, file](const QByteArray& rows) {
    guarded([&] {
      writeText(file, rows);
      showMessage(tr("wrote %1").arg(file), false);
    });
  });
}

/// A chart's numbers as a table in a window of its own: what a screen reader reads, and what can be copied and exported.
void Window::showNumbers() {
  std::vector<Drawing> charts = pages_[static_cast<std::size_t>(currentPage())]->drawings();
  std::erase_if(charts, [](const Drawing& d) { return !qobject_cast<Chart*>(d.widget); });
  const auto which = chosen(this, tr("Numbers of a chart"), tr("Chart"), charts);
  if (!which) return;
  auto* dialog = new QDialog(this);
  dialog->setAttribute(Qt::WA_DeleteOnClose);
  dialog->setWindowTitle(tr("Numbers: %1").arg(which->name));
  auto* column = new QVBoxLayout(dialog);
  auto* table = new TableView(dialog->windowTitle(), dialog);
  table->setModel(new ChartNumbers(*qobject_cast<Chart*>(which->widget), table));
  table->fitColumns();
  column->addWidget(table);
  auto* write = new QPushButton(tr("Export …"));
  connect(write, &QPushButton::clicked, this, [this, table, name = which->name] { guarded([&] { exportTable(*table, name); }); });
  column->addWidget(write, 0, Qt::AlignRight);
  dialog->resize(fontMetrics().averageCharWidth() * 70, fontMetrics().height() * 30);
  dialog->open();
}

void Window::exportReport() {
  const QString name = QFileDialog::getSaveFileName(this, tr("Export report"), QStringLiteral("plan.pdf"), tr("PDF (*.pdf)"));
  if (!name.isEmpty()) writeReport(*session_, name);
}

void Window::save(const QString& file) {
  const Problem problem = make_problem(options_.configs, request_of(session_->draft()));
  writeText(file, QByteArray::fromStdString(projectJson(session_->draft(), problem, session_->selectedPlan(), session_->pinned() ? std::optional(session_->pinned()->plan) : std::nullopt).dump(1) + "\n"));
  file_ = file;
  session_->undoStack()->setClean();
  rememberRecent(file);
  showMessage(tr("saved %1").arg(file), false);
}

void Window::autosave() {
  if (options_.autosave.isEmpty()) return;
  try {
    const Problem problem = make_problem(options_.configs, request_of(session_->draft()));
    QDir().mkpath(QFileInfo(options_.autosave).absolutePath());
    writeText(options_.autosave, QByteArray::fromStdString(projectJson(session_->draft(), problem, session_->selectedPlan(), session_->pinned() ? std::optional(session_->pinned()->plan) : std::nullopt).dump() + "\n"));
  } catch (const InputError&) {
    // A draft with an error in it means no problem: the last whole one stays saved.
  }
}

bool Window::restoreAutosave() {
  if (options_.autosave.isEmpty() || !QFile::exists(options_.autosave)) return false;
  bool restored = false;
  guarded([&] {
    const Opened opened = openProject(options_.autosave.toStdString(), options_.configs, unpack_.path().toStdString());
    session_->restore(opened.draft, opened.plan, opened.pinned);
    showMessage(tr("restored what was open when moeplan-gui last ended without being closed"), false);
    restored = true;
  });
  if (!restored) QFile::remove(options_.autosave);
  return restored;
}

bool Window::openFile(const QString& file) {
  bool taken = false;
  guarded([&] {
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      if (!pages_[i]->open(file)) continue;
      showPage(static_cast<int>(i));
      taken = true;
      break;
    }
    if (!taken) {
      const QFileInfo info(file);
      // A directory, and JSON without a format of ours, is a model.
      std::string format;
      if (!info.isDir()) {
        JsonLimits limits;
        limits.tolerate_nonfinite_literals = true;
        const Json json = load_json(file.toStdString(), limits);
        if (json.is_object() && json.contains("format") && json.at("format").is_string()) format = json.at("format").get<std::string>();
      }
      if (!format.empty()) {
        const Opened opened = openProject(file.toStdString(), options_.configs, unpack_.path().toStdString());
        session_->restore(opened.draft, opened.plan, opened.pinned);
        if (format == "moeplan.project.v1") file_ = file;
      } else {
        Draft next = session_->draft();
        next.model = file.toStdString();
        (void)problem_of(options_.configs, next);
        session_->edit(next, tr("open %1").arg(info.fileName()));
      }
      showPage(0);
      taken = true;
    }
    showMessage({});
    rememberRecent(file);
  });
  return taken;
}

void Window::rememberRecent(const QString& file) {
  QSettings settings;
  QStringList files = settings.value(QStringLiteral("recent")).toStringList();
  if (!file.isEmpty()) {
    files.removeAll(file);
    files.prepend(file);
    while (files.size() > 8) files.removeLast();
    settings.setValue(QStringLiteral("recent"), files);
  }
  recent_->clear();
  recent_->setEnabled(!files.isEmpty());
  for (const QString& each : files) connect(recent_->addAction(each), &QAction::triggered, this, [this, each] { openFile(each); });
}

void Window::closeEvent(QCloseEvent* event) {
  for (Page* page : pages_) page->setEnabled(false);
  if (!options_.autosave.isEmpty()) QFile::remove(options_.autosave);
  event->accept();
}

}  // namespace moeplan::gui
