#pragma once
/// Which rank of how many this process is, and where rank 0 listens: from flags, else from what a launcher left in the
/// environment. Order: flags, torchrun workers (RANK ...), PET_* (torchrun's own settings, as Kubeflow sets them), Slurm, Open
/// MPI / PMI, JobSet and LeaderWorkerSet, else a single process. The first launcher that says anything wins whole: values of two
/// launchers are never mixed, except that a flag overrides one value.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moeplan {

using Environment = std::map<std::string, std::string>;

/// The process's own environment; the one place below the command line that reads it.
[[nodiscard]] Environment process_environment();

/// Flags of `moeplan run` that override what the environment says.
struct RankFlags {
  std::optional<int> rank{}, world_size{}, local_rank{}, local_world_size{}, port{};
  std::optional<std::string> host{};
};

enum class Launcher { flags, torchrun, pet, slurm, mpi, jobset, lws, single };
[[nodiscard]] std::string_view launcher_name(Launcher launcher);

/// One variable that was looked at.
struct Seen {
  std::string variable, value;
  enum class Use { used, ignored, contradicts } use = Use::used;
  std::string note;                  ///< what it gave, or why it was not used
};

struct ProcessPlace {
  Launcher launcher = Launcher::single;
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1, node = 0, nodes = 1;
  std::string host = "127.0.0.1";    ///< where rank 0 listens
  int port = 0;                      ///< 0 only for a single process
  int restart = 0;                   ///< times the launcher has restarted the job
  bool fork_local = false;           ///< one process per node was started: it must start `local_world_size` ranks from `rank` on
  std::vector<Seen> seen;
};

/// Throws InputError naming the variable: not a number, out of range, missing beside those present, or two that contradict.
[[nodiscard]] ProcessPlace find_place(const Environment& environment, const RankFlags& flags = {});

/// For `run --explain-env`: never throws; every variable seen, which launcher won and why, what is missing or contradictory.
/// Values are escaped and cut; variables that may hold secrets are not among those looked at.
[[nodiscard]] std::string explain(const Environment& environment, const RankFlags& flags = {});

/// Host names of a Slurm node list: "a[01-03,7],b,rack[1-2]n[0-1]" -> a01 a02 a03 a7 b rack1n0 rack1n1 rack2n0 rack2n1. Leading zeros
/// are kept. Throws InputError on a malformed list, a character that no host name has, or more than 2^20 names.
[[nodiscard]] std::vector<std::string> expand_nodelist(std::string_view list);

}  // namespace moeplan
