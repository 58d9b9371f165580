#pragma once
/// What is wrong with a draft, field by field, with the rule in numbers and changes that would mend it.

#include <QString>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "gui/models/draft.hpp"

namespace moeplan::gui {

struct Fix {
  QString label;       ///< "ep 64"
  Draft draft;         ///< with the change made
};

struct Issue {
  QString field;       ///< key of a FieldSpec; empty: the whole problem
  QString message;     ///< one line, as the command line prints it
  std::vector<Fix> fixes;
};

/// From the error that refused the draft. `configs` is asked for names where a name is wrong.
[[nodiscard]] Issue issueOf(const InputError& error, const Draft& draft);

/// Pinned degrees that no plan of the problem can have: they do not fold onto the cluster or do not divide what they split. Found without
/// a search, so that it shows while typing.
[[nodiscard]] std::vector<Issue> pinIssues(const Draft& draft, const Problem& problem);

}  // namespace moeplan::gui
