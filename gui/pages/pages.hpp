#pragma once
/// The list of pages, in the order of their keys (Ctrl+1 ...). Adding a page is one file pair and one line in pages.cpp.

#include <vector>

#include "gui/pages/page.hpp"

namespace moeplan::gui {

/// `program`: path of `moeplan`, which the Run page starts.
[[nodiscard]] std::vector<Page*> makePages(Session* session, const QString& program);

}  // namespace moeplan::gui
