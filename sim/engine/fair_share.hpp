#pragma once
/// Max-min fair sharing of links by flows. Each flow has a rate it reaches alone (its full speed) and may load several links
/// unequally (a hierarchical all-gather sends more over NVLink than over its NIC). Rates rise together until a link is full or
/// a flow has its full speed; those stop, the others rise on. Flows that meet no full link never slow down, and cost nothing.
/// Source: progressive filling, Bertsekas and Gallager, Data Networks, section 6.5.2.

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "core/quantity.hpp"

namespace moeplan {

/// What a flow puts on one link at its full speed, bytes/s.
struct LinkUse {
  std::int32_t link = 0;
  double bytes_per_second = 0;
};

class FairShare {
 public:
  /// Returns the link's index: 0, 1, 2, ... Throws std::invalid_argument unless the capacity is above zero.
  std::int32_t add_link(BytesPerSecond capacity);
  [[nodiscard]] BytesPerSecond capacity(std::int32_t link) const { return {links_[static_cast<std::size_t>(link)].capacity}; }

  /// Starts a flow and returns its index (indices of ended flows are used again). A use above a link's capacity counts as the
  /// capacity: alone, a flow is never slowed. `changed()` then lists the flows, this one excepted, whose speed is another than before.
  std::int32_t start(std::span<const LinkUse> uses);
  /// Same where `uses` stay in place until the flow ends and are as `clipped` gives them: nothing is copied.
  std::int32_t start_in_place(std::span<const LinkUse> uses);
  /// Without uses of nothing; none above its link's capacity.
  [[nodiscard]] std::vector<LinkUse> clipped(std::span<const LinkUse> uses) const;
  /// Ends a flow; `changed()` as above.
  void end(std::int32_t flow);

  /// From now on starts and ends only gather; `settle` shares once for all of them, and `changed()` then lists every flow whose
  /// speed is another (new ones: other than 1). For events of one instant, whose order must not cost a sharing each.
  void defer() { deferred_ = true; }
  void settle();
  [[nodiscard]] bool unsettled() const { return !waiting_.empty(); }

  /// Share of its full speed that a flow has now: above 0, at most 1.
  [[nodiscard]] double speed(std::int32_t flow) const { return flows_[static_cast<std::size_t>(flow)].speed; }
  [[nodiscard]] const std::vector<std::int32_t>& changed() const { return changed_; }

 private:
  struct Link {
    double capacity = 0, demand = 0;      ///< demand: sum of its flows' uses
    boost::container::small_vector<LinkUse, 2> flows = {};   ///< `link` is the flow's index here
  };
  /// Of a link: what a search for the flows that it couples reads, apart from the rest and small.
  struct Reached {
    std::uint32_t mark = 0;
    std::int32_t place : 31 = 0;          ///< among the links that are being filled, when marked
    bool contended : 1 = false;           ///< several flows want more than it has
  };
  struct Flow {
    std::span<const LinkUse> uses;
    std::vector<LinkUse> own;             ///< what `uses` views where the caller's do not stay
    double full = 0;                      ///< largest use, bytes/s
    double speed = 1;
    std::uint32_t mark = 0;
  };
  /// While filling: what links and flows of one component need, side by side.
  struct Filling {
    double left = 0, slope = 0;
    bool full = false;
  };
  struct Part {
    std::int32_t place = 0;
    double rate = 0, slope = 0;           ///< bytes/s at full speed; as a share of the flow's largest use
  };
  struct Member {
    std::int32_t flow = 0;
    std::uint32_t begin = 0, end = 0;     ///< of its parts
    double full = 0;
    bool fixed = false, stops = false;
  };

  /// Says anew whether a link is contended.
  bool judge(std::int32_t link);
  void reach(std::int32_t link);
  void gather(std::span<const std::int32_t> from_links);
  void share(std::span<const std::int32_t> from_links, std::int32_t self);
  std::vector<Link> links_;
  std::vector<Reached> reached_;          ///< per link
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_, changed_, touched_, waiting_, component_;   ///< component_: links
  std::vector<Filling> filling_;
  std::vector<Part> parts_;
  std::vector<Member> members_;
  bool deferred_ = false;
  std::uint32_t mark_ = 0;
};

}  // namespace moeplan
