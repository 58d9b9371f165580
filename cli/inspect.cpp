/// moeplan inspect MODEL: what the model is, read off its config.json and, where there are shards, held against them.

#include "sim/program/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.hpp"
#include "cli/table.hpp"
#include "planner/problem.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/checkpoint.hpp"

namespace moeplan::cli {
namespace {

Json checkpoint_json(const CheckpointReport& r) {
  return Json{{"shards_listed", r.shards_listed},
              {"shards_present", r.shards_present},
              {"tensors", r.tensors},
              {"bytes", r.bytes},
              {"ships", {{"mtp", r.has_mtp}, {"mtp_copies", r.has_mtp_copies}, {"vision", r.has_vision}, {"tables", r.has_tables}}},
              {"stores_tied_head", r.stores_tied_head},
              {"mismatches", r.mismatches},
              {"notes", r.notes}};
}

std::string parameters_text(const Context& context, const Json& d) {
  std::vector<std::pair<std::string, std::int64_t>> parts;
  for (const auto& [name, n] : d["parameters"].items())
    if (n.get<std::int64_t>() > 0) parts.emplace_back(name, n.get<std::int64_t>());
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto total = d["total_parameters"].get<std::int64_t>();
  std::vector<std::vector<std::string>> rows;
  for (auto& [name, n] : parts) {
    const bool outside = name == "mtp";  // the total leaves MTP layers out
    std::replace(name.begin(), name.end(), '_', ' ');
    rows.push_back({outside ? "(mtp, besides)" : name, grouped(n), outside ? "" : percent(static_cast<double>(n) / static_cast<double>(total))});
  }
  rows.push_back({"total", grouped(total), ""});
  rows.push_back({"activated per token", grouped(d["activated_parameters"].get<std::int64_t>()), percent(static_cast<double>(d["activated_parameters"].get<std::int64_t>()) / static_cast<double>(total))});
  rows.push_back({"  without the input embedding", grouped(d["activated_parameters_without_embedding"].get<std::int64_t>()), ""});
  return heading(context, "parameters") + "\n" + table({{"kind"}, {"number", true}, {"share", true}}, rows);
}

/// "0-2, 4-6, ... 88-90": at most six runs.
std::string runs_text(const std::vector<std::int64_t>& indices) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < indices.size();) {
    std::size_t j = i;
    while (j + 1 < indices.size() && indices[j + 1] == indices[j] + 1) ++j;
    runs.push_back(i == j ? std::to_string(indices[i]) : fmt::format("{}-{}", indices[i], indices[j]));
    i = j + 1;
  }
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > 6 && i == 4) {
      out += ", ...";
      i = runs.size() - 1;
    }
    out += (i ? ", " : "") + runs[i];
  }
  return out;
}

std::string layers_text(const Context& context, const Json& d) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> kinds;
  for (const Json& layer : d["layers"]) {
    const auto experts = layer["experts"].get<std::int64_t>();
    std::string kind = layer["attention"].get<std::string>() + " + " + layer["ffn"].get<std::string>();
    if (experts) kind += fmt::format(", {} of {} experts", layer["top_k"].get<std::int64_t>(), experts);
    auto it = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (it == kinds.end()) it = kinds.insert(kinds.end(), {kind, {}});
    it->second.push_back(layer["index"].get<std::int64_t>());
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [kind, indices] : kinds) rows.push_back({std::to_string(indices.size()), kind, runs_text(indices)});
  return heading(context, fmt::format("{} layers", d["layers"].size())) + "\n" + table({{"number", true}, {"kind"}, {"which"}}, rows);
}

std::string operators_text(const Context& context, const Json& d) {
  std::string out;
  for (const Json& op : d["operators"]) out += fmt::format("{}{}\u00d7{}", out.empty() ? "" : ", ", op["name"].get<std::string>(), grouped(op["calls_per_micro_batch"].get<std::int64_t>()));
  return heading(context, "forward calls of a micro-batch") + "\n  " + wrapped(out, kWidth - 2, 2) + "\n";
}

std::string tensors_text(const Context& context, const Json& d) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& t : d["tensors"]) {
    std::string shape;
    for (const Json& n : t["shape"]) shape += (shape.empty() ? "" : " x ") + std::to_string(n.get<std::int64_t>());
    rows.push_back({printable(t["name"].get<std::string>()), shape.empty() ? "scalar" : shape, t["dtype"], t["count"].get<std::int64_t>() == 1 ? "" : "x " + grouped(t["count"].get<std::int64_t>())});
  }
  return heading(context, "tensors of the checkpoint (* stands for each expert)") + "\n" + table({{"name"}, {"shape"}, {"type"}, {"number"}}, rows);
}

std::string checkpoint_text(const Context& context, const CheckpointReport& r) {
  std::string out = heading(context, "checkpoint") + "\n";
  out += fmt::format("  {} of {} shards present, {} tensors, {}\n", grouped(r.shards_present), grouped(r.shards_listed), grouped(r.tensors), human(Bytes{r.bytes}));
  if (r.mismatches.empty()) out += "  every tensor is what the config implies\n";
  for (const std::string& line : r.mismatches) out += "  mismatch: " + wrapped(printable(line), kWidth, 4) + "\n";
  for (const std::string& line : r.notes) out += "  note: " + wrapped(printable(line), kWidth, 4) + "\n";
  return out;
}

Output run(const Context& context, const std::string& name, bool tensors) {
  const ModelFile file = load_model_config(context.configs, name);
  const ModelSpec model = import_model(file.config, file.path.string(), file.name);
  Json d = inspect(model, tensors);
  // Shards are looked for only where the user named a model's own directory or file, not beside the shipped configs.
  std::optional<CheckpointReport> report;
  if (file.path.filename() == "config.json") report = check_checkpoint(file.path.has_parent_path() ? file.path.parent_path() : ".", model);
  if (report) d["checkpoint"] = checkpoint_json(*report);
  if (context.json) return {d.dump(2) + "\n", {}, 0};
  std::string out = heading(context, printable(file.name)) + ": " + printable(model.architecture);
  out += fmt::format(", {} parameters, {} activated per token\n", short_count(d["total_parameters"].get<double>()), short_count(d["activated_parameters"].get<double>()));
  if (d["stored_bytes"].is_number()) out += fmt::format("stored: {} in {} tensors\n", human(Bytes{d["stored_bytes"].get<std::int64_t>()}), grouped(d["stored_tensors"].get<std::int64_t>()));
  out += "\n" + parameters_text(context, d) + "\n" + layers_text(context, d) + "\n" + operators_text(context, d);
  if (report) out += "\n" + checkpoint_text(context, *report);
  for (const char* kind : {"uncovered", "notes"})
    for (const Json& line : d[kind]) out += std::string(kind == std::string("notes") ? "note: " : "not covered: ") + wrapped(printable(line.get<std::string>()), kWidth - 13, 2) + "\n";
  if (tensors) out += "\n" + tensors_text(context, d);
  return {out, {}, 0};
}

}  // namespace

Command inspect_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("inspect", "what a model is: parameters by kind, bytes as stored, layers, operators, tensors");
  app->footer("Example: moeplan inspect kimi-k3 --tensors");
  const auto name = std::make_shared<std::string>();
  const auto tensors = std::make_shared<bool>(false);
  app->add_option("MODEL", *name, "config.json, a directory holding one (its shards are cross-checked), or a name from configs/models")->required();
  app->add_flag("--tensors", *tensors, "also each tensor of the checkpoint: name, shape, type");
  return {app, [name, tensors](const Context& context) { return run(context, *name, *tensors); }};
}

}  // namespace moeplan::cli
