#pragma once
/// Files that start a plan's ranks with what a cluster already has: a Slurm batch script, a torchrun line, a JobSet for
/// Kubernetes. They are shown and written, never submitted. Every text from the user is quoted or checked against a list of
/// allowed characters; scripts are clean under shellcheck.

#include <map>
#include <string>
#include <vector>

namespace moeplan {

enum class LaunchKind { slurm, torchrun, jobset };

struct LaunchRequest {
  int nodes = 1, devices_per_node = 1;          ///< of the plan's cluster; world = nodes x devices_per_node
  std::string name = "moeplan";                 ///< of the job
  std::string program = "moeplan";
  std::vector<std::string> arguments{};         ///< after `moeplan run`: plan, --weights DIR ...
  std::map<std::string, std::string> environment{}; ///< exported for every rank
  std::string time = "1-00:00:00";              ///< Slurm's D-HH:MM:SS
  std::string partition{}, account{};             ///< Slurm; left out if empty
  int cpus_per_device = 8;
  int grace_seconds = 120;                      ///< warning before the end: at least twice the time of a save
  bool requeue = false;
  std::string rendezvous_host{};                ///< torchrun over several nodes: the first node
  int port = 29500;
  std::string image{};                          ///< jobset: the container
  std::string name_space = "default";           ///< jobset
  std::string token_secret = "moeplan-token";   ///< jobset: secret with the key `token`
  std::string volume_claim{};                   ///< jobset: persistent volume mounted at /data; left out if empty
};

struct LaunchFile {
  std::string name, text;
  bool executable = false;
};

/// The file for `kind`. Throws InputError naming the field that cannot be written safely or that is missing.
[[nodiscard]] LaunchFile launch_file(LaunchKind kind, const LaunchRequest& request);

}  // namespace moeplan
