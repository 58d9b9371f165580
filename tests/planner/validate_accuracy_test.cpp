/// Accuracy does not fall: the figures of `moeplan validate` on the rows that ship against those kept in
/// configs/measured/accuracy.json.

#include <gtest/gtest.h>

#include "planner/validate/score.hpp"

namespace moeplan::validation {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

TEST(Accuracy, IsNoWorseThanTheFiguresKept) {
  Library library{kConfigs, load_words(kConfigs), {}};
  Rows rows = read_rows(kConfigs / "measured");
  library.models = rows.models;
  std::erase_if(rows.rows, [](const Row& r) { return r.confidence.value_or("high") != "high" && !r.failed; });
  const Validation v = validate(rows, library, 0, {});
  const Json kept = load_json(kConfigs / "measured" / "accuracy.json");
  std::size_t compared = 0;
  for (const auto& [quantity, name] : EnumNames<Measure>::names) {
    for (const auto& [source, scores] : grouped_by(v.scores, quantity, &Score::source)) {
      const std::string key(name);
      if (!kept.at("mape").at(key).contains(source)) continue;
      const Summary s = summarise(scores);
      // Half a point of slack: what another compiler's rounding may move.
      EXPECT_LE(s.mape, kept.at("mape").at(key).at(source).get<double>() + 0.005)
          << name << " of " << source << ", worst " << s.worst_id;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20u);
  std::int64_t called_possible = 0;
  for (const Verdict& verdict : v.wrong) {
    EXPECT_FALSE(verdict.ran) << verdict.id << " ran and is called impossible: " << verdict.need << " of "
                              << verdict.have << " bytes";
    called_possible += !verdict.ran;
  }
  EXPECT_LE(called_possible, kept.at("failed_runs_called_possible").get<std::int64_t>());
  EXPECT_GE(static_cast<double>(v.scored), 0.95 * static_cast<double>(v.complete));
}

}  // namespace
}  // namespace moeplan::validation
