#include "executor/rendezvous/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.hpp"

// NOLINTNEXTLINE(readability-redundant-declaration): POSIX declares it nowhere
extern char** environ;

namespace moeplan {
namespace {

struct Known {
  Launcher launcher;
  std::string_view variable;
};
/// All variables that are looked at. `single` marks those that several launchers use.
constexpr std::array kKnown{
    Known{Launcher::torchrun, "RANK"}, Known{Launcher::torchrun, "WORLD_SIZE"}, Known{Launcher::torchrun, "LOCAL_RANK"},
    Known{Launcher::torchrun, "LOCAL_WORLD_SIZE"}, Known{Launcher::torchrun, "GROUP_RANK"}, Known{Launcher::torchrun, "GROUP_WORLD_SIZE"},
    Known{Launcher::single, "MASTER_ADDR"}, Known{Launcher::single, "MASTER_PORT"}, Known{Launcher::torchrun, "TORCHELASTIC_RESTART_COUNT"},
    Known{Launcher::torchrun, "TORCHELASTIC_USE_AGENT_STORE"}, Known{Launcher::pet, "PET_NNODES"}, Known{Launcher::pet, "PET_NPROC_PER_NODE"},
    Known{Launcher::pet, "PET_NODE_RANK"}, Known{Launcher::pet, "PET_MASTER_ADDR"}, Known{Launcher::pet, "PET_MASTER_PORT"},
    Known{Launcher::slurm, "SLURM_JOB_ID"}, Known{Launcher::slurm, "SLURM_STEP_ID"}, Known{Launcher::slurm, "SLURM_PROCID"},
    Known{Launcher::slurm, "SLURM_LOCALID"}, Known{Launcher::slurm, "SLURM_NODEID"}, Known{Launcher::slurm, "SLURM_STEP_NUM_TASKS"},
    Known{Launcher::slurm, "SLURM_NTASKS"}, Known{Launcher::slurm, "SLURM_NPROCS"}, Known{Launcher::slurm, "SLURM_STEP_NUM_NODES"},
    Known{Launcher::slurm, "SLURM_NNODES"}, Known{Launcher::slurm, "SLURM_JOB_NUM_NODES"}, Known{Launcher::slurm, "SLURM_STEP_TASKS_PER_NODE"},
    Known{Launcher::slurm, "SLURM_TASKS_PER_NODE"}, Known{Launcher::slurm, "SLURM_NTASKS_PER_NODE"}, Known{Launcher::slurm, "SLURM_STEP_NODELIST"},
    Known{Launcher::slurm, "SLURM_JOB_NODELIST"}, Known{Launcher::slurm, "SLURM_RESTART_COUNT"}, Known{Launcher::mpi, "OMPI_COMM_WORLD_RANK"},
    Known{Launcher::mpi, "OMPI_COMM_WORLD_SIZE"}, Known{Launcher::mpi, "OMPI_COMM_WORLD_LOCAL_RANK"}, Known{Launcher::mpi, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Known{Launcher::mpi, "PMI_RANK"}, Known{Launcher::mpi, "PMI_SIZE"}, Known{Launcher::mpi, "PMIX_RANK"}, Known{Launcher::mpi, "MPI_LOCALRANKID"},
    Known{Launcher::mpi, "MPI_LOCALNRANKS"}, Known{Launcher::jobset, "JOB_COMPLETION_INDEX"}, Known{Launcher::jobset, "MOEPLAN_NODES"},
    Known{Launcher::single, "MOEPLAN_RANKS_PER_NODE"}, Known{Launcher::lws, "LWS_LEADER_ADDRESS"}, Known{Launcher::lws, "LWS_GROUP_SIZE"},
    Known{Launcher::lws, "LWS_WORKER_INDEX"}};

struct Problem {
  std::string variable, what, fix;
};

/// Reads variables, remembers which were used and what was wrong with them.
class Reader {
 public:
  Reader(const Environment& environment, std::vector<Problem>& problems) : environment_(environment), problems_(problems) {}

  [[nodiscard]] bool has(std::string_view name) const {
    const auto it = environment_.find(std::string(name));
    return it != environment_.end() && !it->second.empty();
  }

  std::optional<std::string> text(std::string_view name, std::string_view note) {
    const auto it = environment_.find(std::string(name));
    if (it == environment_.end() || it->second.empty()) return std::nullopt;
    use(name, it->second, note);
    return it->second;
  }

  std::optional<int> number(std::string_view name, std::string_view note, int low = 0, int high = 1 << 20) {
    const auto value = text(name, note);
    if (!value) return std::nullopt;
    int n = 0;
    const auto [end, status] = std::from_chars(value->data(), value->data() + value->size(), n);
    if (status != std::errc() || end != value->data() + value->size()) {
      problem(name, shown(*value) + " is not a whole number", {});
      return std::nullopt;
    }
    if (n < low || n > high) {
      problem(name, fmt::format("{} is out of range", n), fmt::format("it must be {} to {}", low, high));
      return std::nullopt;
    }
    return n;
  }

  /// As `number`, and a problem if it is not there.
  std::optional<int> need(std::string_view name, std::string_view note, int low = 0, int high = 1 << 20) {
    if (!has(name)) problem(name, fmt::format("is missing ({})", note), {});
    return number(name, note, low, high);
  }

  void problem(std::string_view name, const std::string& what, const std::string& fix) {
    problems_.push_back({std::string(name), what, fix});
    for (auto& s : seen)
      if (s.variable == name) {
        s.use = Seen::Use::contradicts;
        s.note = what;
      }
  }

  std::vector<Seen> seen;

 private:
  void use(std::string_view name, const std::string& value, std::string_view note) {
    for (const auto& s : seen)
      if (s.variable == name) return;
    seen.push_back({std::string(name), value, Seen::Use::used, std::string(note)});
  }
  const Environment& environment_;
  std::vector<Problem>& problems_;
};

/// A port that all ranks of a job compute alike, below the range from which Linux takes ports of outgoing connections.
int port_of(std::string_view job) {
  std::uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000u);
}

/// The entry of node `node` in "8(x2),4": 8 8 4.
std::optional<int> tasks_on(std::string_view list, int node) {
  int at = 0;
  const char* p = list.data();
  const char* const end = p + list.size();
  while (p < end) {
    int tasks = 0, times = 1;
    auto r = std::from_chars(p, end, tasks);
    if (r.ec != std::errc()) return std::nullopt;
    p = r.ptr;
    if (end - p > 2 && p[0] == '(' && p[1] == 'x') {
      r = std::from_chars(p + 2, end, times);
      if (r.ec != std::errc() || times < 1 || r.ptr == end || *r.ptr != ')') return std::nullopt;
      p = r.ptr + 1;
    }
    if (node < at + times) return tasks;
    at += times;
    if (p < end && *p++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

void read_master(Reader& in, ProcessPlace& place) {
  if (const auto host = in.text("MASTER_ADDR", "where rank 0 listens")) place.host = *host;
  if (const auto port = in.number("MASTER_PORT", "its port", 1, 65535)) place.port = *port;
}

void read_torchrun(Reader& in, ProcessPlace& place) {
  place.rank = in.need("RANK", "rank").value_or(0);
  place.world_size = in.need("WORLD_SIZE", "ranks in all", 1).value_or(1);
  place.local_world_size = in.number("LOCAL_WORLD_SIZE", "ranks on this node", 1).value_or(place.world_size == 1 ? 1 : 0);
  if (place.local_world_size == 0) {
    place.local_world_size = 1;
    in.problem("LOCAL_WORLD_SIZE", "is missing (ranks on this node)", "torchrun sets it; with another launcher give --local-world-size");
  }
  const auto local = in.number("LOCAL_RANK", "rank on this node");
  if (!local && place.world_size > 1 && !in.has("LOCAL_RANK")) in.problem("LOCAL_RANK", "is missing (rank on this node)", "torchrun sets it; with another launcher give --local-rank");
  place.local_rank = local.value_or(0);
  place.node = in.number("GROUP_RANK", "node").value_or(place.rank / place.local_world_size);
  place.nodes = in.number("GROUP_WORLD_SIZE", "nodes", 1).value_or((place.world_size + place.local_world_size - 1) / place.local_world_size);
  place.restart = in.number("TORCHELASTIC_RESTART_COUNT", "restarts so far", 0, 1 << 30).value_or(0);
  if (place.world_size > 1) {
    if (!in.has("MASTER_ADDR")) in.problem("MASTER_ADDR", "is missing (where rank 0 listens)", {});
    if (!in.has("MASTER_PORT")) in.problem("MASTER_PORT", "is missing (its port)", {});
  }
  read_master(in, place);
  if (in.has("TORCHELASTIC_USE_AGENT_STORE")) {
    const auto store = in.text("TORCHELASTIC_USE_AGENT_STORE", "torchrun's own store listens on MASTER_PORT, so the rendezvous takes the next port");
    if (store == "True" && place.port > 0) ++place.port;
  }
}

void read_pet(Reader& in, ProcessPlace& place, const RankFlags& flags) {
  int nodes = 1;
  if (const auto text = in.text("PET_NNODES", "nodes")) {
    const std::size_t colon = text->find(':');
    if (colon != std::string::npos && text->substr(0, colon) != text->substr(colon + 1)) in.problem("PET_NNODES", shown(*text) + " is an elastic range", "a plan needs a fixed number of nodes");
    const std::string first = text->substr(0, colon);
    const auto [end, status] = std::from_chars(first.data(), first.data() + first.size(), nodes);
    if (status != std::errc() || end != first.data() + first.size() || nodes < 1 || nodes > 1 << 20) {
      in.problem("PET_NNODES", shown(*text) + " is not a number of nodes", {});
      nodes = 1;
    }
  }
  int per_node = 1;
  const auto text = in.has("PET_NPROC_PER_NODE") ? in.text("PET_NPROC_PER_NODE", "ranks per node") : std::nullopt;
  if (text == "auto" || text == "gpu") {
    if (flags.local_world_size) per_node = *flags.local_world_size;
    else in.problem("PET_NPROC_PER_NODE", shown(*text) + " depends on the node", "set a number, or give --local-world-size");
  } else {
    per_node = in.number("PET_NPROC_PER_NODE", "ranks per node", 1, 1024).value_or(1);
  }
  int node = 0;
  if (in.has("PET_NODE_RANK")) node = in.number("PET_NODE_RANK", "node").value_or(0);
  else if (in.has("JOB_COMPLETION_INDEX")) node = in.number("JOB_COMPLETION_INDEX", "node, as PET_NODE_RANK is not set").value_or(0);
  else if (nodes > 1) in.problem("PET_NODE_RANK", "is missing (node)", {});
  place.node = node;
  place.nodes = nodes;
  place.local_world_size = per_node;
  place.world_size = nodes * per_node;
  place.rank = node * per_node;
  place.fork_local = true;
  if (const auto host = in.text("PET_MASTER_ADDR", "where rank 0 listens")) place.host = *host;
  else if (nodes > 1) in.problem("PET_MASTER_ADDR", "is missing (where rank 0 listens)", {});
  place.port = in.number("PET_MASTER_PORT", "its port", 1, 65535).value_or(29500);
}

void read_slurm(Reader& in, ProcessPlace& place) {
  place.rank = in.need("SLURM_PROCID", "rank").value_or(0);
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"})
    if (in.has(name)) {
      place.world_size = in.number(name, "ranks in all", 1).value_or(1);
      break;
    }
  if (!in.has("SLURM_STEP_NUM_TASKS") && !in.has("SLURM_NTASKS") && !in.has("SLURM_NPROCS")) in.problem("SLURM_NTASKS", "is missing (ranks in all)", {});
  place.local_rank = in.need("SLURM_LOCALID", "rank on this node").value_or(0);
  place.node = in.number("SLURM_NODEID", "node").value_or(0);
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"})
    if (in.has(name)) {
      place.nodes = in.number(name, "nodes", 1).value_or(1);
      break;
    }
  place.local_world_size = std::max(1, (place.world_size + place.nodes - 1) / place.nodes);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"})
    if (const auto list = in.text(name, "ranks on this node")) {
      const auto tasks = tasks_on(*list, std::string_view(name) == "SLURM_NTASKS_PER_NODE" ? 0 : place.node);
      if (tasks && *tasks > 0) place.local_world_size = *tasks;
      else in.problem(name, shown(*list) + " says nothing of node " + std::to_string(place.node), {});
      break;
    }
  place.restart = in.number("SLURM_RESTART_COUNT", "restarts so far", 0, 1 << 30).value_or(0);
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
    if (const auto list = in.text(name, "rank 0 listens on its first node")) {
      try {
        const auto hosts = expand_nodelist(*list);
        place.host = hosts[0];
        if (static_cast<int>(hosts.size()) != place.nodes) in.problem(name, fmt::format("has {} nodes, but the step has {}", hosts.size(), place.nodes), {});
      } catch (const InputError& e) {
        in.problem(name, e.reason(), e.fix());
      }
      break;
    }
  const std::string job = in.text("SLURM_JOB_ID", "gives the port").value_or("0") + "." + in.text("SLURM_STEP_ID", "gives the port").value_or("0");
  place.port = port_of(job);
  read_master(in, place);
  if (place.nodes > 1 && !in.has("SLURM_STEP_NODELIST") && !in.has("SLURM_JOB_NODELIST") && !in.has("MASTER_ADDR"))
    in.problem("SLURM_JOB_NODELIST", "is missing (where rank 0 listens)", "set MASTER_ADDR");
}

void read_mpi(Reader& in, ProcessPlace& place) {
  if (in.has("OMPI_COMM_WORLD_RANK")) {
    place.rank = in.need("OMPI_COMM_WORLD_RANK", "rank").value_or(0);
    place.world_size = in.need("OMPI_COMM_WORLD_SIZE", "ranks in all", 1).value_or(1);
    place.local_rank = in.need("OMPI_COMM_WORLD_LOCAL_RANK", "rank on this node").value_or(0);
    place.local_world_size = in.need("OMPI_COMM_WORLD_LOCAL_SIZE", "ranks on this node", 1).value_or(1);
  } else if (in.has("PMI_RANK")) {
    place.rank = in.need("PMI_RANK", "rank").value_or(0);
    place.world_size = in.need("PMI_SIZE", "ranks in all", 1).value_or(1);
    place.local_rank = in.need("MPI_LOCALRANKID", "rank on this node").value_or(0);
    place.local_world_size = in.need("MPI_LOCALNRANKS", "ranks on this node", 1).value_or(1);
  } else {
    place.rank = in.number("PMIX_RANK", "rank").value_or(0);
    in.problem("PMIX_RANK", "gives the rank but not how many there are", "give --rank and --world-size, or start with srun or Open MPI's mpirun");
  }
  place.nodes = std::max(1, (place.world_size + place.local_world_size - 1) / place.local_world_size);
  place.node = place.rank / place.local_world_size;
  read_master(in, place);
  if (place.world_size > 1 && !in.has("MASTER_PORT")) in.problem("MASTER_PORT", "is missing (its port)", "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500");
  if (place.nodes > 1 && !in.has("MASTER_ADDR")) in.problem("MASTER_ADDR", "is missing (where rank 0 listens)", "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500");
}

/// One pod per node; ranks are started by the process itself.
void read_pods(Reader& in, ProcessPlace& place, bool lws) {
  place.node = lws ? in.need("LWS_WORKER_INDEX", "node").value_or(0) : in.need("JOB_COMPLETION_INDEX", "node").value_or(0);
  place.nodes = lws ? in.need("LWS_GROUP_SIZE", "nodes", 1).value_or(1) : in.need("MOEPLAN_NODES", "nodes; launch files set it", 1).value_or(1);
  place.local_world_size = in.number("MOEPLAN_RANKS_PER_NODE", "ranks per node", 1, 1024).value_or(1);
  place.world_size = place.nodes * place.local_world_size;
  place.rank = place.node * place.local_world_size;
  place.fork_local = true;
  place.port = 29500;
  if (lws) {
    if (const auto host = in.text("LWS_LEADER_ADDRESS", "where rank 0 listens")) place.host = *host;
  } else if (place.nodes > 1 && !in.has("MASTER_ADDR")) {
    in.problem("MASTER_ADDR", "is missing (where rank 0 listens)", "the pod name of index 0 with its subdomain; launch files set it");
  }
  read_master(in, place);
}

bool valid_host(std::string_view host) {
  return !host.empty() && host.size() <= 255 && host[0] != '-' && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_' || c == ':';
  });
}

Launcher winner(const Reader& in, const RankFlags& flags) {
  if (flags.rank || flags.world_size) return Launcher::flags;
  if (in.has("RANK") || in.has("WORLD_SIZE")) return Launcher::torchrun;
  if (in.has("PET_NNODES") || in.has("PET_NODE_RANK") || in.has("PET_NPROC_PER_NODE")) return Launcher::pet;
  if (in.has("SLURM_PROCID")) return Launcher::slurm;
  if (in.has("OMPI_COMM_WORLD_RANK") || in.has("PMI_RANK") || in.has("PMIX_RANK")) return Launcher::mpi;
  if (in.has("LWS_WORKER_INDEX") || in.has("LWS_GROUP_SIZE")) return Launcher::lws;
  if (in.has("JOB_COMPLETION_INDEX") && in.has("MOEPLAN_NODES")) return Launcher::jobset;
  return Launcher::single;
}

ProcessPlace resolve(const Environment& environment, const RankFlags& flags, std::vector<Problem>& problems) {
  Reader in(environment, problems);
  ProcessPlace place;
  place.launcher = winner(in, flags);
  switch (place.launcher) {
    case Launcher::flags:
      if (!flags.rank) problems.push_back({"--rank", "is missing beside --world-size", {}});
      if (!flags.world_size) problems.push_back({"--world-size", "is missing beside --rank", {}});
      place.rank = flags.rank.value_or(0);
      place.world_size = flags.world_size.value_or(1);
      place.local_world_size = flags.local_world_size.value_or(std::max(1, place.world_size));
      place.local_rank = flags.local_rank.value_or(place.rank % std::max(1, place.local_world_size));
      if (place.local_world_size > 0) {
        place.node = place.rank / place.local_world_size;
        place.nodes = (place.world_size + place.local_world_size - 1) / place.local_world_size;
      }
      if (place.world_size > 1 && !flags.port) problems.push_back({"--rendezvous-port", "is missing", "any free port from 1024 on, the same for all ranks"});
      if (place.nodes > 1 && !flags.host) problems.push_back({"--rendezvous-host", "is missing", "the host of rank 0"});
      // Without it all ranks are taken to be here, where the host would not be looked at.
      if (place.world_size > 1 && !flags.local_world_size && flags.host && *flags.host != "localhost" && *flags.host != "::1" && !flags.host->starts_with("127."))
        problems.push_back({"--local-world-size", fmt::format("is missing beside --rendezvous-host {}", shown(*flags.host)), fmt::format("how many of the ranks are on this machine: {} if all are", place.world_size)});
      break;
    case Launcher::torchrun: read_torchrun(in, place); break;
    case Launcher::pet: read_pet(in, place, flags); break;
    case Launcher::slurm: read_slurm(in, place); break;
    case Launcher::mpi: read_mpi(in, place); break;
    case Launcher::jobset: read_pods(in, place, false); break;
    case Launcher::lws: read_pods(in, place, true); break;
    case Launcher::single: break;
  }
  if (flags.local_rank) place.local_rank = *flags.local_rank;
  if (flags.local_world_size) place.local_world_size = *flags.local_world_size;
  if (flags.host) place.host = *flags.host;
  if (flags.port) place.port = *flags.port;

  const auto contradiction = [&](const char* where, const std::string& what) { problems.push_back({where, what, {}}); };
  const std::string name(launcher_name(place.launcher));
  if (place.world_size < 1 || place.world_size > 1 << 20) contradiction(name.c_str(), fmt::format("{} ranks", place.world_size));
  else if (place.rank < 0 || place.rank >= place.world_size) contradiction(name.c_str(), fmt::format("rank {} of {} ranks", place.rank, place.world_size));
  if (place.local_world_size < 1 || place.local_rank < 0 || place.local_rank >= place.local_world_size)
    contradiction(name.c_str(), fmt::format("local rank {} of {} ranks on the node", place.local_rank, place.local_world_size));
  if (place.node < 0 || place.node >= place.nodes) contradiction(name.c_str(), fmt::format("node {} of {} nodes", place.node, place.nodes));
  if (!valid_host(place.host)) contradiction(name.c_str(), shown(place.host) + " is no host name");
  if (place.world_size > 1 && (place.port < 1024 || place.port > 65535)) {
    if (place.port != 0 || problems.empty()) problems.push_back({name, fmt::format("port {}", place.port), "use a port from 1024 to 65535 (--rendezvous-port)"});
  }
  place.seen = std::move(in.seen);
  for (const Known& k : kKnown) {
    const auto it = environment.find(std::string(k.variable));
    if (it == environment.end()) continue;
    if (std::any_of(place.seen.begin(), place.seen.end(), [&](const Seen& s) { return s.variable == k.variable; })) continue;
    place.seen.push_back({it->first, it->second, Seen::Use::ignored,
                          it->second.empty() ? "empty" : k.launcher == Launcher::single || k.launcher == place.launcher || place.launcher == Launcher::single
                                                             ? "not needed"
                                                             : fmt::format("{} comes first", launcher_name(place.launcher))});
  }
  return place;
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::flags: return "flags";
    case Launcher::torchrun: return "torchrun";
    case Launcher::pet: return "PET_* variables";
    case Launcher::slurm: return "Slurm";
    case Launcher::mpi: return "MPI";
    case Launcher::jobset: return "JobSet";
    case Launcher::lws: return "LeaderWorkerSet";
    case Launcher::single: break;
  }
  return "single process";
}

Environment process_environment() {
  Environment out;
  for (char** each = environ; each && *each; ++each) {
    const std::string_view entry(*each);
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos) out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

ProcessPlace find_place(const Environment& environment, const RankFlags& flags) {
  std::vector<Problem> problems;
  ProcessPlace place = resolve(environment, flags, problems);
  if (!problems.empty()) throw InputError(problems[0].variable, problems[0].what, problems[0].fix);
  return place;
}

std::string explain(const Environment& environment, const RankFlags& flags) {
  std::vector<Problem> problems;
  const ProcessPlace place = resolve(environment, flags, problems);
  std::string out = fmt::format("launcher: {}\n", launcher_name(place.launcher));
  if (problems.empty()) {
    out += fmt::format("rank {} of {}, local rank {} of {}, node {} of {}\n", place.rank, place.world_size, place.local_rank, place.local_world_size, place.node, place.nodes);
    if (place.fork_local) out += fmt::format("one process per node was started: it starts ranks {} to {} itself\n", place.rank, place.rank + place.local_world_size - 1);
    out += place.world_size == 1 ? "no rendezvous needed\n" : fmt::format("rank 0 listens on {} port {}\n", place.host, place.port);
  }
  for (const auto use : {Seen::Use::used, Seen::Use::contradicts, Seen::Use::ignored})
    for (const Seen& s : place.seen)
      if (s.use == use)
        out += fmt::format("  {:<11} {}={}  {}\n", use == Seen::Use::used ? "used" : use == Seen::Use::ignored ? "not used" : "wrong", s.variable, shown(s.value), s.note);
  if (environment.count("SLURM_JOB_ID") && !environment.count("SLURM_PROCID") && place.launcher == Launcher::single)
    out += "inside a Slurm allocation but not started by srun: only one rank would run\n";
  if (place.launcher == Launcher::slurm && place.world_size > 1 && !environment.count("SLURM_STEP_ID"))
    out += "SLURM_STEP_ID is not set: in the batch script itself only rank 0 exists; start it with srun\n";
  for (const Problem& p : problems) out += fmt::format("problem: {}: {}{}\n", p.variable, p.what, p.fix.empty() ? "" : "; " + p.fix);
  return out;
}

}  // namespace moeplan
