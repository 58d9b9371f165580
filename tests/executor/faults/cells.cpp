#include "tests/executor/faults/cells.hpp"

namespace moeplan::faults {

std::vector<Point> points(const std::string& phase, bool nan, const std::string& backend) {
  const std::string backend_class = backend == "cuda" ? "11CudaBackend" : "10CpuBackend", write = backend_class + "5writeE", call = backend_class + "4callE", copy = backend_class + "4copyE",
                    open = backend == "cuda" ? "17nccl_communicatorE" : "26shared_memory_communicatorE";
  const std::string words = "12Communicator12gather_wordsE", all_to_all = "12Communicator10all_to_allE", scatter = "12Communicator14reduce_scatterE",
                    reduce = "12Communicator10all_reduceE", barrier = "8Lifeline7barrierE", join = "N7moeplan4joinE";
  if (nan) {
    // No numbers travel at the rendezvous and at the end: there it is a wrong token, and a wrong name of the last barrier (of which rank 0's counts).
    if (phase == "rendezvous") return {{false, join, 1, "rdx"}, {true, join, 1, "rdx"}};
    if (phase == "init") return {{false, write, 1, "rdx"}, {true, write, 1, "rdx"}};
    // Rows; the exchange before each carries their experts' numbers.
    if (phase == "forward dispatch") return {{false, all_to_all, 2}, {true, all_to_all, 2}, {false, all_to_all, 4}, {true, all_to_all, 4}, {false, all_to_all, 6}};
    if (phase == "backward reduce") return {{false, copy, 1, "*rsi"}, {true, copy, 1, "*rsi"}, {false, copy, 3, "*rsi"}, {true, copy, 3, "*rsi"}, {false, copy, 5, "*rsi"}};
    if (phase == "optimizer") return {{false, write, 1, "rdx"}, {true, write, 1, "rdx"}, {false, write, 2, "rdx"}, {true, write, 3, "rdx"}};
    // Parts of tensors; `gather_words` returns a vector, so its object is in rsi. The first call has one word: whether all is finite.
    if (phase == "save") return {{false, words, 2, "rdx"}, {true, words, 2, "rdx"}, {false, words, 5, "rdx"}, {true, words, 4, "rdx"}};
    if (phase == "load") return {{false, write, 1, "rdx"}, {true, reduce, 1}, {false, write, 4, "rdx"}, {true, reduce, 4}};
    return {{false, barrier, 1, "*rsi:2"}};
  }
  if (phase == "rendezvous") return {{false, join}, {false, "4wire10connect_toE"}, {true, "4wire7welcomeE"}, {false, "4wire11session_keyE"}, {true, join}};
  if (phase == "init") return {{false, open}, {true, open}, {false, "7TrainerC"}, {false, "9randomiseE"}, {true, "10RankGroupsC"}};
  if (phase == "forward dispatch") return {{false, all_to_all, 1}, {true, all_to_all, 2}, {false, all_to_all, 3}, {true, all_to_all, 6}, {false, all_to_all, 9}};
  if (phase == "backward reduce") return {{false, scatter, 1}, {true, scatter, 2}, {false, scatter, 3}, {true, scatter, 5}, {false, scatter, 8}};
  if (phase == "optimizer") return {{false, write, 1}, {true, call, 1}, {false, call, 2}, {true, write, 2}, {false, write, 3}};
  if (phase == "save") return {{true, "15save_checkpointE"}, {false, words, 3}, {true, "13write_durableE", 2}, {true, "16commit_directoryE"}, {true, "13write_durableE", 1}};
  if (phase == "load") return {{true, "15load_checkpointE"}, {false, words, 1}, {true, reduce, 2}, {false, reduce, 3}, {false, write, 2}};
  return {{false, barrier}, {true, barrier}};
}

std::vector<Point> hang_points(const std::string& phase, const std::string& backend) {
  if (phase != "init") return points(phase, false, backend);
  const std::string own = backend == "cuda" ? "17nccl_communicatorE" : "26shared_memory_communicatorE", together = backend == "cuda" ? "4Nccl10do_connectE" : "12SharedMemory10do_connectE";
  return {{false, own}, {false, together}, {true, own}, {true, together}, {false, "7TrainerC"}, {true, "10RankGroupsC"}};
}

std::vector<Point> slow_points(const std::string& phase, const std::string& backend) {
  // Rank 0 keeps the state of all in memory of the host.
  if (phase == "load") return {{.first = true, .function = "10CpuBackend5writeE", .slow = 40}};
  if (phase == "save") return {{.first = true, .function = "10CpuBackend4readE", .slow = 40}};
  if (phase == "forward dispatch" && backend == "cpu") return {{.function = "10CpuBackend4callE", .slow = 150}};
  return {};
}

std::string phase_in_program(const std::string& phase, const std::string& action) { return phase == "rendezvous" ? "start" : action == kSlow && phase == "forward dispatch" ? "forward" : phase; }

std::string shim_action(const std::string& action, const Point& point, const std::string& backend) {
  if (action == "exception") return "throw";
  if (action == "nan") return "nan:" + point.nan;
  if (action == kSlow) return "slow:" + std::to_string(point.slow);
  // Device memory that is not there, where some is asked for; elsewhere the host's.
  if (action == "memory" && backend == "cuda" && point.function == "7TrainerC") return "memory";
  return action;
}

}  // namespace moeplan::faults
