#pragma once
/// Writes turns out as instances: an FSDP gather `prefetch` slots ahead, release after use (or after the backward pass without
/// resharding), gradients reduced right after their slot's last backward call, messages at the ends of a chunk. Lowering and
/// the planner's closed form issue through it, so they cannot disagree about what comes after what.

#include <map>

#include "sim/program/schedules/schedule.hpp"

namespace moeplan {

enum class Phase : std::uint8_t { gather, release, forward, backward, weight_backward, forward_backward, reduce, send_receive, optimizer };
template <>
struct EnumNames<Phase> {
  static constexpr std::array names{std::pair{Phase::gather, std::string_view("gather")}, std::pair{Phase::release, std::string_view("release")},
                                    std::pair{Phase::forward, std::string_view("forward")}, std::pair{Phase::backward, std::string_view("backward")},
                                    std::pair{Phase::weight_backward, std::string_view("weight_backward")}, std::pair{Phase::forward_backward, std::string_view("forward_backward")},
                                    std::pair{Phase::reduce, std::string_view("reduce")}, std::pair{Phase::send_receive, std::string_view("send_receive")},
                                    std::pair{Phase::optimizer, std::string_view("optimizer")}};
};

/// One thing the rank does. Lane order is list order; `after` names earlier instances of other lanes that must have ended.
struct Instance {
  Phase phase = Phase::forward;
  std::int32_t slot = -1;          ///< index into Program::slots; -1 for the optimizer and the pipeline exchange
  std::int32_t micro_batch = -1;
  std::int32_t forward_slot = -1, forward_micro_batch = -1;   ///< forward_backward: of the forward pass; `slot` is the backward one's
  bool with_next = false;          ///< send_receive: the partner is the next stage, otherwise the one before (the last stage is before the first)
  Bytes sent{}, received{};        ///< send_receive: activations or their gradients to and from the neighbour stages
  std::vector<std::int32_t> after = {};
};

/// What issuing needs to know of a slot.
struct IssueSlot {
  bool gathers = false;            ///< its weights are sharded or cast
  bool reduces = false;            ///< its gradients cross the network
  bool backward = true;            ///< its backward pass does something
  bool weight_backward = false;    ///< split schedules: so does the part put off
};

/// Slots [first, end) that run back to back, and what crosses its ends; 0 bytes where it begins or ends the model.
struct IssueChunk {
  std::int32_t first = 0, end = 0;
  Bytes entering{}, leaving{};
};

class Issuer {
 public:
  Issuer(const Plan& plan, std::vector<IssueSlot> slots, std::vector<IssueChunk> chunks);

  /// Appends what `turn` does.
  void issue(const Turn& turn, std::vector<Instance>& out);

  /// Slots whose unsharded copies are there, as bits: what one turn leaves to the next.
  [[nodiscard]] const std::vector<bool>& gathered() const { return there_; }
  void set_gathered(std::vector<bool> there) { there_ = std::move(there); }

 private:
  std::int32_t add(Instance i);
  void gather(std::int32_t slot, const IssueChunk& chunk, std::int32_t j);
  void release(std::int32_t slot, std::int32_t j, std::int32_t user);
  void require(Instance& i, std::int32_t slot) const;
  std::int32_t receive(const IssueChunk& chunk, std::int32_t j, bool gradients);
  void send(const IssueChunk& chunk, std::int32_t j, bool gradients, std::int32_t after);
  void after_backward(std::int32_t slot, std::int32_t j, std::int32_t user);
  void finish_backward(const IssueChunk& chunk, std::int32_t j, std::int32_t last);
  void forward(const IssueChunk& chunk, std::int32_t j);
  void backward(const IssueChunk& chunk, std::int32_t j);
  void weight(const IssueChunk& chunk, std::int32_t j);
  void both(const Turn& turn);
  [[nodiscard]] bool keeps_copy(const IssueChunk& chunk, std::int32_t slot) const;
  [[nodiscard]] const IssueSlot& slot(std::int32_t s) const { return slots_[static_cast<std::size_t>(s)]; }

  const Plan& plan_;
  std::vector<IssueSlot> slots_;
  std::vector<IssueChunk> chunks_;
  std::vector<bool> there_;
  std::vector<std::int32_t> gather_;   ///< per slot: the instance that gathered it in this list; -1
  std::vector<Instance>* out_ = nullptr;
};

}  // namespace moeplan
