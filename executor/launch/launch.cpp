#include "executor/launch/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "executor/launch/quote.hpp"

namespace moeplan {
namespace {

constexpr const char* kShebang = "#!/bin/bash\n# Nothing inside single quotes is meant to expand.\n# shellcheck disable=SC2016\n";

void check(const LaunchRequest& r) {
  if (r.nodes < 1 || r.nodes > 1 << 20) throw InputError("launch nodes", fmt::format("{} is out of range", r.nodes), "1 to 1048576");
  if (r.devices_per_node < 1 || r.devices_per_node > 1024) throw InputError("launch devices per node", fmt::format("{} is out of range", r.devices_per_node), "1 to 1024");
  if (r.cpus_per_device < 1 || r.cpus_per_device > 4096) throw InputError("launch CPUs per device", fmt::format("{} is out of range", r.cpus_per_device), "1 to 4096");
  if (r.grace_seconds < 0 || r.grace_seconds > 86400) throw InputError("launch grace", fmt::format("{} s is out of range", r.grace_seconds), "0 to 86400");
  if (r.port < 1024 || r.port > 65534) throw InputError("launch port", fmt::format("{} is out of range", r.port), "1024 to 65534");
}

/// A YAML scalar that Kubernetes leaves alone: in commands and values it expands $(NAME), and $$ stands for $.
std::string pod_text(const std::string& text, std::string_view what) {
  std::string doubled;
  for (const char c : text) doubled += c == '$' ? "$$" : std::string(1, c);
  return yaml_text(doubled, what);
}

/// Names that decide what code a program runs before its first line.
void check_variable(const std::string& name) {
  (void)checked_name(name, "launch environment", "_");
  for (const char* refused : {"PATH", "IFS", "ENV", "BASH_ENV", "SHELLOPTS"})
    if (name == refused) throw InputError("launch environment", name + " is not set by launch files", {});
  if (name.rfind("LD_", 0) == 0 || name.rfind("SLURM_", 0) == 0) throw InputError("launch environment", name + " is not set by launch files", {});
}

std::string exports(const LaunchRequest& r) {
  std::string out;
  for (const auto& [name, value] : r.environment) {
    check_variable(name);
    out += fmt::format("export {}={}\n", name, shell_word(value, "launch environment " + name));
  }
  return out;
}

/// `moeplan run ARGUMENTS` as shell words, one a line.
std::string command(const LaunchRequest& r, const std::string& indent) {
  std::string out = shell_path(r.program, "launch program") + " run";
  for (const auto& a : r.arguments) out += " \\\n" + indent + shell_word(a, "launch argument");
  return out;
}

LaunchFile slurm(const LaunchRequest& r) {
  const std::string name = checked_name(r.name, "launch job name", "-_.", 64);
  if (r.time.empty() || r.time.find_first_not_of("0123456789-:") != std::string::npos) throw InputError("launch time", shown(r.time), "write it as D-HH:MM:SS");
  std::string s = kShebang;
  s += fmt::format("#SBATCH --job-name={}\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n#SBATCH --gpus-per-node={}\n#SBATCH --cpus-per-task={}\n", name, r.nodes,
                   r.devices_per_node, r.devices_per_node, r.cpus_per_device);
  s += fmt::format("#SBATCH --time={}\n#SBATCH --output=%x-%j.out\n#SBATCH --open-mode=append\n#SBATCH --exclusive\n", r.time);
  if (r.grace_seconds > 0) s += fmt::format("#SBATCH --signal=USR1@{}\n", r.grace_seconds);
  s += r.requeue ? "#SBATCH --requeue\n" : "#SBATCH --no-requeue\n";
  if (!r.partition.empty()) s += fmt::format("#SBATCH --partition={}\n", checked_name(r.partition, "launch partition", "-_.,"));
  if (!r.account.empty()) s += fmt::format("#SBATCH --account={}\n", checked_name(r.account, "launch account", "-_."));
  s += fmt::format("# {} ranks, one per device. Submit from a directory that all nodes share: the job's token lies there.\nset -euo pipefail\n\n", r.nodes * r.devices_per_node);
  s += "umask 077\n";
  s += "MOEPLAN_TOKEN_FILE=\"$(mktemp \"$PWD/.moeplan-token-$SLURM_JOB_ID-XXXXXXXX\")\"\n";
  s += "export MOEPLAN_TOKEN_FILE MOEPLAN_TOKEN_ONCE=1\n";
  s += "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' > \"$MOEPLAN_TOKEN_FILE\"\n";
  s += exports(r);
  s += fmt::format("\nexec srun --wait=60 --kill-on-bad-exit=1 --export=ALL \\\n  {}\n", command(r, "    "));
  return {r.name + ".sbatch", s, true};
}

LaunchFile torchrun(const LaunchRequest& r) {
  const std::string name = checked_name(r.name, "launch job name", "-_.", 64);
  if (r.nodes > 1 && r.rendezvous_host.empty()) throw InputError("launch rendezvous host", "is missing", "the first node's name, for torchrun over several nodes");
  std::string s = kShebang;
  s += r.nodes > 1 ? fmt::format("# Run on each of the {} nodes: {}.torchrun.sh NODE, NODE = 0 to {}.\n", r.nodes, name, r.nodes - 1)
                   : fmt::format("# Starts {} ranks on this machine.\n", r.devices_per_node);
  s += "# MOEPLAN_TOKEN_FILE must name a file of mode 0600 with the same 64 hex digits on every node;\n# on one node it is made here.\nset -euo pipefail\n\n";
  if (r.nodes > 1) {
    s += "node=\"${1:?the number of this node is missing, 0 for the first}\"\n";
    s += "export MOEPLAN_TOKEN_FILE=\"${MOEPLAN_TOKEN_FILE:?must name the file with the token of the job}\"\n";
  } else {
    s += "umask 077\nMOEPLAN_TOKEN_FILE=\"$(mktemp)\"\nexport MOEPLAN_TOKEN_FILE MOEPLAN_TOKEN_ONCE=1\n";
    s += "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' > \"$MOEPLAN_TOKEN_FILE\"\n";
  }
  s += exports(r);
  s += fmt::format("\nexec torchrun --nnodes={} --nproc-per-node={} --max-restarts=0 \\\n", r.nodes, r.devices_per_node);
  if (r.nodes > 1)
    s += fmt::format("  --node-rank=\"$node\" --master-addr={} --master-port={} \\\n", shell_word(checked_name(r.rendezvous_host, "launch rendezvous host", "-_.:", 255), "launch rendezvous host"), r.port);
  else
    s += fmt::format("  --master-addr=127.0.0.1 --master-port={} \\\n", r.port);
  s += fmt::format("  --no-python -- {}\n", command(r, "    "));
  return {name + ".torchrun.sh", s, true};
}

LaunchFile jobset(const LaunchRequest& r) {
  // DNS labels: lower case, and short enough for <name>-ranks-0-<index>.
  const std::string name = checked_name(r.name, "launch job name", "-", 40);
  if (std::any_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; }) || name.back() == '-')
    throw InputError("launch job name", shown(name) + " is no Kubernetes name", "lower-case letters, digits and - only");
  if (r.image.empty()) throw InputError("launch image", "is missing", "name the container image that holds moeplan with --launch-image");
  const std::string image = checked_name(r.image, "launch image", "-_./:@", 255);
  const std::string secret = checked_name(r.token_secret, "launch token secret", "-.", 63);
  std::string s = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\n";
  s += fmt::format("metadata:\n  name: {}\n  namespace: {}\n", yaml_text(name, "launch job name"), yaml_text(checked_name(r.name_space, "launch namespace", "-", 63), "launch namespace"));
  s += "spec:\n  network:\n    enableDNSHostnames: true\n";
  s += fmt::format("    subdomain: {}\n", yaml_text(name, "launch job name"));
  s += fmt::format("  failurePolicy:\n    maxRestarts: {}\n", r.requeue ? 3 : 0);
  s += "  replicatedJobs:\n    - name: ranks\n      replicas: 1\n      template:\n        spec:\n";
  s += fmt::format("          parallelism: {}\n          completions: {}\n          completionMode: Indexed\n          backoffLimit: 0\n", r.nodes, r.nodes);
  s += "          template:\n            spec:\n              restartPolicy: Never\n";
  s += fmt::format("              terminationGracePeriodSeconds: {}\n", std::max(30, r.grace_seconds));
  s += "              containers:\n                - name: moeplan\n";
  s += fmt::format("                  image: {}\n", yaml_text(image, "launch image"));
  s += fmt::format("                  command:\n                    - {}\n                    - \"run\"\n", pod_text(r.program, "launch program"));
  for (const auto& a : r.arguments) s += fmt::format("                    - {}\n", pod_text(a, "launch argument"));
  std::map<std::string, std::string> variables = r.environment;
  for (const auto& [variable, value] : variables) check_variable(variable);
  variables["MOEPLAN_NODES"] = std::to_string(r.nodes);
  variables["MOEPLAN_RANKS_PER_NODE"] = std::to_string(r.devices_per_node);
  variables["MOEPLAN_TOKEN_FILE"] = "/run/moeplan/token";
  variables["MASTER_ADDR"] = fmt::format("{}-ranks-0-0.{}", name, name);
  variables["MASTER_PORT"] = std::to_string(r.port);
  s += "                  env:\n";
  for (const auto& [variable, value] : variables)
    s += fmt::format("                    - name: {}\n                      value: {}\n", yaml_text(variable, "launch environment"), pod_text(value, "launch environment " + variable));
  s += fmt::format("                  resources:\n                    limits:\n                      nvidia.com/gpu: {}\n", r.devices_per_node);
  s += "                  volumeMounts:\n                    - name: token\n                      mountPath: /run/moeplan\n                      readOnly: true\n";
  s += "                    - name: shm\n                      mountPath: /dev/shm\n";
  if (!r.volume_claim.empty()) s += "                    - name: data\n                      mountPath: /data\n";
  s += fmt::format("              volumes:\n                - name: token\n                  secret:\n                    secretName: {}\n                    defaultMode: 0400\n", yaml_text(secret, "launch token secret"));
  s += "                - name: shm\n                  emptyDir:\n                    medium: Memory\n";
  if (!r.volume_claim.empty())
    s += fmt::format("                - name: data\n                  persistentVolumeClaim:\n                    claimName: {}\n", yaml_text(checked_name(r.volume_claim, "launch volume claim", "-.", 253), "launch volume claim"));
  return {name + ".jobset.yaml", s, false};
}

}  // namespace

LaunchFile launch_file(LaunchKind kind, const LaunchRequest& request) {
  check(request);
  switch (kind) {
    case LaunchKind::slurm: return slurm(request);
    case LaunchKind::torchrun: return torchrun(request);
    case LaunchKind::jobset: break;
  }
  return jobset(request);
}

}  // namespace moeplan
