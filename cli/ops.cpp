/// moeplan ops [NAME]: the operator catalogue.

#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/table.hpp"
#include "core/error.hpp"
#include "core/read.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan::cli {
namespace {

std::string yes_no(const Json& flag) { return flag.get<bool>() ? "yes" : "-"; }

std::string list(const Context& context, const Json& all) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& op : all)
    rows.push_back({op["name"], yes_no(op["backends"]["reference"]), yes_no(op["backends"]["cuda"]), op["doc"]});
  return heading(context, fmt::format("{} operators", all.size())) + "\n" +
         table({{"name"}, {"reference"}, {"cuda"}, {"what it does"}}, rows);
}

std::string shape_text(const Json& shape) {
  std::string out;
  for (const Json& d : shape) out += (out.empty() ? "" : " x ") + std::to_string(d.get<std::int64_t>());
  return out.empty() ? "scalar" : out;
}

std::string one(const Context& context, const Json& op) {
  std::string out = heading(context, op["name"].get<std::string>()) + ": " + op["doc"].get<std::string>() + "\n";
  out += fmt::format("reference: {}, cuda: {}\n\n", yes_no(op["backends"]["reference"]), yes_no(op["backends"]["cuda"]));
  std::vector<std::vector<std::string>> rows;
  for (const Json& f : op["fields"]) rows.push_back({f["name"], f["default"].is_string() ? f["default"].get<std::string>() : f["default"].dump(), f.value("doc", std::string())});
  out += heading(context, "fields") + "\n" + table({{"name"}, {"default"}, {"meaning"}}, rows) + "\n";
  rows.clear();
  for (const Json& o : op["operands"]) {
    const std::string needed = o["needed_for"];
    rows.push_back({o["name"], o["role"], shape_text(o["shape"]), o["dtype"], needed == "no" ? "-" : needed});
  }
  out += heading(context, "operands of: " + op["example"].get<std::string>()) + "\n";
  out += table({{"name"}, {"role"}, {"shape", true}, {"type"}, {"read again for"}}, rows);
  return out;
}

Output run(const Context& context, const std::string& name) {
  const Json all = describe();
  if (name.empty()) return {context.json ? all.dump(2) + "\n" : list(context, all), {}, 0};
  std::vector<std::string_view> known;
  for (const Json& op : all) {
    if (op["name"] == name) return {context.json ? op.dump(2) + "\n" : one(context, op), {}, 0};
    known.push_back(op["name"].get_ref<const std::string&>());
  }
  const auto near = nearest_name(name, known);
  throw InputError("ops", shown(name) + " is not an operator", near.empty() ? "`moeplan ops` lists them" : "did you mean \"" + std::string(near) + "\"?");
}

}  // namespace

Command ops_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("ops", "the operator catalogue: what exists, on which backends, with which operands");
  app->footer("Example: moeplan ops grouped_linear");
  const auto name = std::make_shared<std::string>();
  app->add_option("NAME", *name, "one operator, in detail");
  return {app, [name](const Context& context) { return run(context, *name); }};
}

}  // namespace moeplan::cli
