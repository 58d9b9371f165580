#pragma once
/// moeplan calibrate --links N: what the collectives between N ranks of this machine take.

#include <functional>
#include <string>

#include "cli/command.hpp"

namespace moeplan::cli {

struct LinksOptions {
  int ranks = 0;
  std::string backend, output, name, most;   ///< `most`: largest payload, "64 MiB"; empty: the backend's
  bool again = false;
  std::function<std::string(const std::string& opened)> device_name;   ///< which of configs/devices this is
};

/// One process for each rank; rank 0 writes the samples into the profile, beside those of operator calls that it has.
[[nodiscard]] Output calibrate_links(const Context& context, const LinksOptions& options);

}  // namespace moeplan::cli
