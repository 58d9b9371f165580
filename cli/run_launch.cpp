#include "cli/run_launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "executor/launch/launch.hpp"

namespace moeplan::cli {
namespace {

constexpr const char* kGroup = "Many ranks";

/// What was said on the command line, but for this page's options.
std::vector<std::string> said(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* o : app.get_options()) {
    if (o->count() == 0 || o->get_group() == kGroup || o->get_name() == "--help" || o->get_name() == "--ranks") continue;
    if (o->nonpositional()) out.push_back(o->get_name());
    if (o->get_type_size() == 0) continue;
    for (const std::string& value : o->results()) out.push_back(value);
  }
  return out;
}

}  // namespace

void add_launch_options(CLI::App& app, LaunchOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& text) { return app.add_option(name, value, text)->group(kGroup); };
  app.add_flag("--explain-env", o.explain_env, "which rank this process would be, by which variables, and which were not used")->group(kGroup);
  add("--write-launch", o.kind, "write a file that starts the plan's ranks; nothing is submitted")->check(CLI::IsMember({"slurm", "torchrun", "jobset"}));
  add("--launch-dir", o.directory, "where it is written (default: here)");
  add("--launch-name", o.name, "name of the job and of the file (default moeplan)");
  add("--launch-time", o.time, "slurm: time limit, D-HH:MM:SS (default 1-00:00:00)");
  add("--launch-partition", o.partition, "slurm: partition");
  add("--launch-account", o.account, "slurm: account");
  add("--launch-image", o.image, "jobset: container image that holds moeplan");
  add("--launch-host", o.host, "torchrun on several nodes: the first node");
  add("--token-file", o.token_file, "the job's token: 64 hex digits, mode 0600 (default: $MOEPLAN_TOKEN_FILE)");
  add("--rank", o.flags.rank, "this process's rank, over what the launcher left in the environment")->check(CLI::Range(0, 1 << 24));
  add("--world-size", o.flags.world_size, "how many ranks there are")->check(CLI::PositiveNumber);
  add("--local-rank", o.flags.local_rank, "its number on this machine, which is its device's")->check(CLI::Range(0, 1 << 24));
  add("--local-world-size", o.flags.local_world_size, "ranks on this machine")->check(CLI::PositiveNumber);
  add("--rendezvous-host", o.flags.host, "where rank 0 listens");
  add("--rendezvous-port", o.flags.port, "and on which port")->check(CLI::Range(1, 65535));
}

Output explain_environment(const LaunchOptions& options) { return {explain(process_environment(), options.flags), {}, 0}; }

Output write_launch(const CLI::App& app, const LaunchOptions& o, const LoadedPlan& loaded) {
  const int world = loaded.plan.parallelism.world(), per_node = std::min(world, static_cast<int>(loaded.problem.cluster.devices_per_node));
  if (world % per_node != 0) throw InputError("--write-launch", fmt::format("{} ranks do not fill nodes of {} devices", world, per_node), "a plan for whole nodes");
  const LaunchKind kind = o.kind == "slurm" ? LaunchKind::slurm : o.kind == "torchrun" ? LaunchKind::torchrun : LaunchKind::jobset;
  LaunchRequest request{.nodes = world / per_node, .devices_per_node = per_node, .name = o.name, .arguments = said(app), .time = o.time, .partition = o.partition, .account = o.account,
                        .rendezvous_host = o.host, .image = o.image};
  if (std::find(request.arguments.begin(), request.arguments.end(), "--backend") == request.arguments.end()) request.arguments.insert(request.arguments.end(), {"--backend", "cuda"});
  const LaunchFile file = launch_file(kind, request);
  const std::filesystem::path at = std::filesystem::path(o.directory) / file.name;
  std::error_code error;
  std::filesystem::create_directories(o.directory, error);
  if (error) throw InputError("--launch-dir", shown(o.directory) + " cannot be made: " + error.message());
  write_text_file(at, file.text);
  if (file.executable) std::filesystem::permissions(at, std::filesystem::perms::owner_exec, std::filesystem::perm_options::add);
  return {{}, {fmt::format("{}: starts {} ranks on {} node{} of {}; nothing was submitted", at.string(), world, request.nodes, request.nodes == 1 ? "" : "s", per_node)}, 0};
}

}  // namespace moeplan::cli
