#include "gui/pages/page.hpp"

#include "gui/models/session.hpp"

namespace moeplan::gui {

Page::Page(Session* session, const QString& title, const QString& purpose, QWidget* parent) : QWidget(parent), session_(session), title_(title), purpose_(purpose) {
  setAccessibleName(tr("%1 page").arg(title));
  setAccessibleDescription(purpose);
}

QAction* Page::addPageAction(const QString& text, const QKeySequence& keys, std::function<void()> run) {
  auto* action = new QAction(text, this);
  action->setShortcut(keys);
  action->setShortcutContext(Qt::WidgetWithChildrenShortcut);
  connect(action, &QAction::triggered, this, [this, run = std::move(run)] {
    try {
      run();
    } catch (const InputError& e) {
      Q_EMIT session_->message(QString::fromUtf8(e.what()));
    }
  });
  addAction(action);
  return action;
}

}  // namespace moeplan::gui
