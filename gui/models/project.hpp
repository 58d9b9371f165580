#pragma once
/// A project file: the draft, every input it names in full, the selected and the pinned plan. Self-contained: a colleague without the
/// same configs opens it and sees the same numbers. Format "moeplan.project.v1"; plan files of the command line open the same way.

#include <filesystem>

#include "gui/models/session.hpp"

namespace moeplan::gui {

struct Opened {
  Draft draft;
  std::optional<Plan> plan;
  std::optional<RankedPlan> pinned;
};

/// `problem`: as the draft means it, without what-if factors.
[[nodiscard]] Json projectJson(const Draft& draft, const Problem& problem, const std::optional<Plan>& plan, const std::optional<Plan>& pinned);

/// Reads a project or plan file. Inputs that differ from the configs of that name are written into `unpack` (a folder of this run),
/// and the draft then names those files. Throws InputError.
[[nodiscard]] Opened openProject(const std::filesystem::path& file, const std::filesystem::path& configs, const std::filesystem::path& unpack);

}  // namespace moeplan::gui
