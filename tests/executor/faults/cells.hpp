#pragma once
/// The 48 cells: what happens to a rank x the phase in which it happens, each with five places in the program.

#include <array>
#include <string>
#include <vector>

namespace moeplan::faults {

inline constexpr std::array kActions{"kill", "stop", "exit", "exception", "memory", "nan"};
/// Beside the 48: its threads that speak to the others go on, so that only the calls that wait for it tell.
inline constexpr const char* kHang = "hang";
/// And no fault: each of many pieces of work takes some time, all of them longer than the limit. Nobody may be ended.
inline constexpr const char* kSlow = "slow";
inline constexpr std::array kPhases{"rendezvous", "init", "forward dispatch", "backward reduce", "optimizer", "save", "load", "shutdown"};

/// A breakpoint in one rank.
struct Point {
  bool first = false;          ///< rank 0, else the last rank
  std::string function;        ///< part of its mangled name
  int hit = 1;
  std::string nan = "rsi";     ///< argument that points to the numbers
  int slow = 0;                ///< ms
};

/// Five of them; the trials of a cell go round. `backend`: "cpu" or "cuda", whose names differ in places.
[[nodiscard]] std::vector<Point> points(const std::string& phase, bool nan, const std::string& backend);

/// Of `points`, and in the opening of the world: this rank's own part of it, and the part that all make together, in which nobody else is missing.
[[nodiscard]] std::vector<Point> hang_points(const std::string& phase, const std::string& backend);

/// Where work comes in pieces, in load, save and the forward pass of a first step; empty elsewhere.
[[nodiscard]] std::vector<Point> slow_points(const std::string& phase, const std::string& backend);

/// What the rank's last `set_phase` was there.
[[nodiscard]] std::string phase_in_program(const std::string& phase, const std::string& action);

/// What the shim does, for a trial of a cell.
[[nodiscard]] std::string shim_action(const std::string& action, const Point& point, const std::string& backend);

}  // namespace moeplan::faults
