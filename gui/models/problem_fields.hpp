#pragma once
/// The fields of the Problem page as data: what they are called, their unit, what they mean, how they are read from and written to a
/// draft, what a problem made of it, and where that figure comes from. The page draws them; the command palette lists them.

#include <QString>
#include <QStringList>
#include <functional>
#include <vector>

#include "gui/models/draft.hpp"

namespace moeplan::gui {

enum class Origin : std::uint8_t { by_default, from_file, edited };

struct FieldSpec {
  QString key;                                              ///< as in Draft and in error messages
  QString group, label, unit;
  QString why;                                              ///< one sentence
  enum class Kind : std::uint8_t { choice, file_or_name, number, words } kind = Kind::number;
  QString room;                                             ///< configs room whose names are choices
  QStringList choices;
  std::function<QString(const Draft&)> get;                 ///< empty: not set
  std::function<bool(Draft&, const QString&)> set;          ///< empty text resets; false: the text is not a value of this field
  std::function<QString(const Problem&)> effective;         ///< what is used when nothing is set
  std::function<QString(const Problem&)> source;            ///< where the figure in use comes from
};

[[nodiscard]] const std::vector<FieldSpec>& problemFields();
[[nodiscard]] Origin originOf(const FieldSpec& field, const Draft& draft);

}  // namespace moeplan::gui
