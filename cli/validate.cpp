/// moeplan validate: predictions against measured runs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/command.hpp"
#include "cli/table.hpp"
#include "planner/validate/score.hpp"

namespace moeplan::cli {
namespace {

using namespace validation;

struct Options {
  std::string rows, plot;
  bool every_row = false, all = false;
};

std::string signed_percent(double share) { return fmt::format("{:+.1f} %", 100 * share); }

std::vector<std::string> summary_row(const std::string& name, const Summary& s) {
  return {std::to_string(s.count), percent(s.mape),
          percent(s.median_ape),   signed_percent(s.bias),
          signed_percent(s.worst), percent(s.coverage),
          percent(s.median_width), s.rank_correlation ? fmt::format("{:.3f}", *s.rank_correlation) : "",
          printable(name)};
}

std::string summaries(const Context& context, const Validation& v, std::string Score::*key, const char* title) {
  std::string out;
  for (const auto& [quantity, name] : EnumNames<Measure>::names) {
    std::vector<std::vector<std::string>> lines;
    for (const auto& [group, scores] : grouped_by(v.scores, quantity, key))
      lines.push_back(summary_row(group, summarise(scores)));
    if (lines.empty()) continue;
    std::string what(name);
    std::replace(what.begin(), what.end(), '_', ' ');
    if (lines.size() > 1) lines.push_back(summary_row("all", summarise(of_quantity(v.scores, quantity))));
    out += heading(context, what + ", by " + title) + "\n" +
           table({{"rows", true},
                  {"MAPE", true},
                  {"median", true},
                  {"bias", true},
                  {"worst", true},
                  {"in 90 %", true},
                  {"width", true},
                  {"rank", true},
                  {title}},
                 lines) +
           "\n";
  }
  return out;
}

/// What one number for each source, taken from its other layouts, would make of its step times.
std::string scaled_sources(const Context& context, const Validation& v) {
  std::vector<std::vector<std::string>> lines;
  for (const auto& [source, scores] : grouped_by(v.scores, Measure::step_time, &Score::source)) {
    if (scores.size() < 5) continue;
    if (const auto mape = mape_with_one_scalar(scores))
      lines.push_back(
          {std::to_string(scores.size()), percent(summarise(scores).mape), percent(*mape), printable(source)});
  }
  if (lines.empty()) return {};
  return heading(context, "step time, one scalar for the source, left out layout by layout") + "\n" +
         table({{"rows", true}, {"MAPE", true}, {"scaled", true}, {"source"}}, lines) + "\n";
}

std::string shown_value(const Score& s, double value) {
  return s.quantity == Measure::step_time ? duration({value}) : fmt::format("{:.2f} GiB", value / 1073741824.0);
}

std::string row_table(const Context& context, const Validation& v) {
  std::vector<std::vector<std::string>> lines;
  for (const Score& s : v.scores)
    lines.push_back({shown_value(s, s.measured), shown_value(s, s.predicted), signed_percent(s.error()),
                     s.in_interval() ? "" : "outside", std::string(name_of(s.quantity)), printable(s.id)});
  return heading(context, "each row") + "\n" +
         table({{"measured", true}, {"predicted", true}, {"error", true}, {"90 %"}, {"quantity"}, {"row"}}, lines) +
         "\n";
}

std::string report_text(const Context& context, const Validation& v, const Options& options) {
  std::string out;
  if (options.every_row) out += row_table(context, v);
  out += summaries(context, v, &Score::source, "source") + summaries(context, v, &Score::hardware, "hardware");
  out += scaled_sources(context, v);
  std::map<std::string, std::vector<std::string>> reasons;
  for (const Skipped& s : v.skipped) reasons[s.reason].push_back(s.id);
  if (!reasons.empty()) {
    std::vector<std::vector<std::string>> lines;
    for (const auto& [reason, ids] : reasons)
      lines.push_back(
          {std::to_string(ids.size()), printable(reason + " (" + ids.front() + (ids.size() > 1 ? ", ..." : "") + ")")});
    std::stable_sort(lines.begin(), lines.end(),
                     [](const auto& a, const auto& b) { return std::stoll(a[0]) > std::stoll(b[0]); });
    out += heading(context, "skipped") + "\n" + table({{"rows", true}, {"why"}}, lines) + "\n";
  }
  if (!v.wrong.empty()) {
    std::vector<std::vector<std::string>> lines;
    for (const Verdict& w : v.wrong)
      lines.push_back({fmt::format("{:.1f} GiB", w.need / 1073741824.0),
                       fmt::format("{:.1f} GiB", w.have / 1073741824.0), w.ran ? "ran" : "failed", printable(w.id)});
    out += heading(context, "feasibility that the run contradicts") + "\n" +
           table({{"predicted", true}, {"device", true}, {"the run"}, {"row"}}, lines) + "\n";
  }
  out += fmt::format(
      "{} rows; {} of confidence high and complete, {} of them scored; {} judged for feasibility, {} contradicted\n",
      v.rows, v.complete, v.scored, v.verdicts, v.wrong.size());
  return out;
}

Output run(const Context& context, const Options& options) {
  Library library{context.configs, load_words(context.configs), {}};
  const std::filesystem::path shipped = context.configs / "measured";
  Rows rows = read_rows(options.rows.empty() ? shipped : std::filesystem::path(options.rows));
  library.models = rows.models;
  if (!options.rows.empty())
    for (auto& [name, dims] : read_models(load_json(shipped / "models.json"), "models.json"))
      fill_in(library.models[name], dims);
  if (!options.all && options.rows.empty())
    std::erase_if(rows.rows, [](const Row& r) { return r.confidence.value_or("high") == "low"; });
  const Validation v = validate(rows, library, context.threads, context.show_progress);
  Output out;
  if (!options.plot.empty()) {
    write_text_file(options.plot, plot_svg(v));
    out.notes.push_back(options.plot + ": predicted over measured");
  }
  out.text = context.json ? report_json(v).dump(2) + "\n" : report_text(context, v, options);
  return out;
}

}  // namespace

Command validate_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "validate",
      "predictions against measured runs: error per source and hardware, intervals, what was skipped and why");
  app->footer("Example: moeplan validate --rows --plot accuracy.svg");
  const auto options = std::make_shared<Options>();
  app->add_option("FILE_OR_DIR", options->rows, "measured rows (default: those that ship)");
  app->add_flag("--rows", options->every_row, "show every row");
  app->add_flag("--all", options->all, "of the rows that ship, score those of confidence low too");
  app->add_option("--plot", options->plot, "write predicted over measured as SVG");
  return {app, [options](const Context& context) { return run(context, *options); }};
}

}  // namespace moeplan::cli
