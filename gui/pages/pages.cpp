#include "gui/pages/pages.hpp"

#include "gui/pages/experts_page.hpp"
#include "gui/pages/memory_page.hpp"
#include "gui/pages/plans_page.hpp"
#include "gui/pages/problem_page.hpp"
#include "gui/pages/run_page.hpp"
#include "gui/pages/timeline_page.hpp"

namespace moeplan::gui {

std::vector<Page*> makePages(Session* session, const QString& program) {
  return {new ProblemPage(session), new PlansPage(session), new MemoryPage(session), new TimelinePage(session), new ExpertsPage(session), new RunPage(session, program)};
}

}  // namespace moeplan::gui
