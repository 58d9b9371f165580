#pragma once
/// Routed experts between the ranks of a stage: moved to where another placement has them, with the adapters and the
/// optimizer's moments that go with them; and the gradients of experts that lie in several slots, which are one
/// gradient.
///
/// Elements are found by their place in the whole tensor, so expert-tensor ranks, FSDP pieces and experts held as they
/// are stored (whole matrices, payload and scales apart) are all the same here. Ranks of one data replica and
/// expert-tensor number keep to each other.

#include "executor/ranks/groups.hpp"
#include "executor/ranks/slots.hpp"

namespace moeplan {

/// Where what arrives waits; grows as needed.
struct MovingRoom {
  Backend::Memory memory;
  Bytes bytes{};
};

/// The most that it takes in a run of this program. `moves`: experts may be placed anew; gradients of copies pass through it in any case.
[[nodiscard]] Bytes moving_room(const Program& program, const Problem& problem, const Plan& plan, const Backend& backend, bool moves);

/// What `move_experts` makes this rank put on the network: send_receive over the stage.
[[nodiscard]] CommCounter moving_volume(const Parameters& parameters, const RankPlace& place, const ExpertSlots& to);
/// Brings frozen weights as they are held, trained ones and their moments (not gradients) to where `to` has them,
/// tensor by tensor; one call of all ranks of the stage, between steps.
void move_experts(Parameters& parameters, const ExpertSlots& to, RankGroups& ranks, Backend& backend, MovingRoom& room);

/// Gradients of experts in several slots become their sum in the first slot and zero in the others, so that each counts
/// once in a norm.
void reduce_replicas(Parameters& parameters, RankGroups& ranks, Backend& backend, MovingRoom& room);
/// And back: the first slot's gradient to all slots.
void spread_replicas(Parameters& parameters, RankGroups& ranks, Backend& backend);
/// What both make this rank put on the network, together.
[[nodiscard]] CommCounter replica_volume(const Parameters& parameters, const RankPlace& place);

}  // namespace moeplan
