#pragma once
/// Measured times of communication calls between neighbours (`calibrate --links`, executor/calibrate/links.hpp), as a profile holds
/// them: "all_gather payload=1048576 ranks=2", and "counts payload=512 ranks=2" for the exchange of the experts' counts over the host. And how long one of
/// them holds up what is computed beside it: "delay all_gather payload=67108864 ranks=2".
/// Those of ranks on several hosts end with their number, " hosts=4": which links a call takes goes by it.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/spec/profile.hpp"

namespace moeplan {

class LinkSamples {
 public:
  LinkSamples() = default;
  explicit LinkSamples(const DeviceProfile& profile);

  struct Time {
    double seconds = 0, spread = 0;
    bool exact = false;   ///< this payload was measured
  };
  /// Of a call of so many payload bytes over so many ranks: between two measured payloads on the line through them (a latency and a rate), below
  /// the least its time, beyond the largest by the rate of the last two (its own where it took no longer than the one before). Empty where that collective was not measured over
  /// so many ranks, and beyond a lone sample: of a latency and a rate it knows only the sum.
  [[nodiscard]] std::optional<Time> time(const std::string& collective, std::int64_t ranks, double payload, std::int64_t hosts = 1) const;
  [[nodiscard]] bool empty() const { return of_.empty(); }

  /// Share of computing that calls of one collective cost while they run: the delay of one over its own time, of the largest payload of which both were
  /// measured; 0 to 1.
  struct Share {
    std::string collective;
    std::int64_t ranks = 0, hosts = 1;
    double share = 0;
  };
  /// Over more than `above` ranks and at most `most`, of several hosts or of one: over `ranks` of them, else over the most that were measured. Empty where none was.
  [[nodiscard]] std::optional<double> share(const std::string& collective, std::int64_t ranks, double above, double most, bool several_hosts) const;
  [[nodiscard]] const std::vector<Share>& shares() const { return shares_; }

 private:
  struct Point {
    double payload, seconds, spread;
  };
  using Group = std::tuple<std::string, std::int64_t, std::int64_t>;   ///< collective, ranks, hosts
  std::map<Group, std::vector<Point>> of_;                             ///< ascending payloads
  std::vector<Share> shares_;   ///< by collective, then ranks
};

}  // namespace moeplan
