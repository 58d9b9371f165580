#include "executor/ranks/moves.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/checked.hpp"
#include "executor/backend/convert.hpp"
#include "executor/backend/stored.hpp"
#include "executor/walk/exchange.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A stretch of a tensor that a rank of the stage holds.
struct Holding {
  int rank = 0;
  ElementRun run;
};
/// `at` units from the start of what `rank` holds.
struct Spot {
  int rank = 0;
  std::int64_t at = 0;
};
/// The same `count` units, wherever they lie.
struct Stretch {
  std::int64_t count = 0;
  std::vector<Spot> before, after;
};

/// Bytes of a tensor that move alike: `unit` for each element; of what is stored in blocks `per_matrix` for each
/// `matrix` elements.
struct Plane {
  std::int64_t base = 0, unit = 1, matrix = 0, per_matrix = 0;
};

std::vector<Plane> planes_of(const Parameter& p, DType type) {
  if (plain_bytes(type) > 0) return {{.base = 0, .unit = plain_bytes(type)}};
  Shape one = p.shape;
  one.dim[0] = 1;
  const std::int64_t payload = payload_bytes(type, one), all = stored_bytes(type, one).value;
  return {{.base = 0, .unit = 1, .matrix = one.elements(), .per_matrix = payload},
          {.base = payload * p.shape[0], .unit = 1, .matrix = one.elements(), .per_matrix = all - payload}};
}

std::vector<Holding> holdings(const Cut& cut, const RankPlace& mine, const Plane& plane) {
  std::vector<Holding> out;
  const int ranks = mine.parallelism.stage_ranks();
  for (int i = 0; i < ranks; ++i) {
    const RankPlace place{mine.stage() * ranks + i, mine.parallelism};
    if (place.index(Group::expert_tensor) != mine.index(Group::expert_tensor) ||
        place.index(Group::expert_data_replicate) != mine.index(Group::expert_data_replicate))
      continue;
    for (const ElementRun& run : held_runs(cut, place)) {
      const auto scaled = [&](std::int64_t n) { return plane.matrix > 0 ? n / plane.matrix * plane.per_matrix : n; };
      out.push_back({i, {scaled(run.at), scaled(run.count), scaled(run.here)}});
    }
  }
  return out;
}

std::vector<Stretch> stretches(const std::vector<Holding>& before, const std::vector<Holding>& after) {
  std::vector<std::int64_t> ends;
  for (const auto* list : {&before, &after})
    for (const Holding& h : *list) ends.push_back(h.run.at), ends.push_back(h.run.at + h.run.count);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::vector<Stretch> out(ends.empty() ? 0 : ends.size() - 1);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].count = ends[i + 1] - ends[i];
  for (auto [list, spots] : {std::pair{&before, &Stretch::before}, std::pair{&after, &Stretch::after}})
    for (const Holding& h : *list)
      for (auto i = index(std::lower_bound(ends.begin(), ends.end(), h.run.at) - ends.begin());
           i < out.size() && ends[i] < h.run.at + h.run.count; ++i)
        (out[i].*spots).push_back({h.rank, h.run.here + ends[i] - h.run.at});
  return out;
}

/// Bytes from one rank of the stage to another (or itself).
struct Parcel {
  Spot from, to;
  std::int64_t bytes = 0;
};

void add(std::vector<Parcel>& parcels, const Plane& plane, const Spot& from, const Spot& to, std::int64_t count) {
  const Parcel next{
      {from.rank, plane.base + from.at * plane.unit}, {to.rank, plane.base + to.at * plane.unit}, count * plane.unit};
  if (!parcels.empty())
    if (Parcel& last = parcels.back(); last.from.rank == next.from.rank && last.to.rank == next.to.rank &&
                                       last.from.at + last.bytes == next.from.at &&
                                       last.to.at + last.bytes == next.to.at) {
      last.bytes += next.bytes;
      return;
    }
  parcels.push_back(next);
}

/// What a tensor's memory of `type` must send to lie as `to` says: from the rank's own where it has it, else from one
/// of those that do, in turn.
std::vector<Parcel> moving_parcels(const Parameter& p, DType type, const Slots& to, const RankPlace& place) {
  std::vector<Parcel> out;
  Cut after = p.cut();
  after.slots = to;
  for (const Plane& plane : planes_of(p, type))
    for (const Stretch& s : stretches(holdings(p.cut(), place, plane), holdings(after, place, plane)))
      for (const Spot& spot : s.after) {
        auto from = std::find_if(s.before.begin(), s.before.end(), [&](const Spot& b) { return b.rank == spot.rank; });
        if (from == s.before.end())
          from = s.before.begin() + static_cast<std::ptrdiff_t>(index(spot.rank) % s.before.size());
        add(out, plane, *from, spot, s.count);
      }
  return out;
}

/// From every further slot to the first one that holds an element.
std::vector<Parcel> replica_parcels(const Parameter& p, const RankPlace& place) {
  std::vector<Parcel> out;
  if (!p.trained || !p.slots || static_cast<std::int64_t>(p.slots->size()) == p.whole[0]) return out;
  const Plane plane = planes_of(p, DType::f32).front();
  for (const Stretch& s : stretches(holdings(p.cut(), place, plane), {}))
    for (std::size_t i = 1; i < s.before.size(); ++i) add(out, plane, s.before[i], s.before.front(), s.count);
  return out;
}

void count(CommCounter& c, const std::vector<Parcel>& parcels, int mine, bool turned = false) {
  bool any = false;
  for (const Parcel& p : parcels) {
    const int from = turned ? p.to.rank : p.from.rank, to = turned ? p.from.rank : p.to.rank;
    any |= from == mine || to == mine;
    if (from == mine) c.payload += p.bytes, c.sent += to == mine ? 0 : p.bytes;
  }
  c.calls += any ? 1 : 0;
}

struct Mail {
  std::vector<Transfer> sends, receives;
};
void deliver(const Mail& mail, RankGroups& ranks, Backend& backend) {
  if (mail.sends.empty() && mail.receives.empty()) return;
  Communicator& stage = ranks.stage();
  after_compute(stage, backend);
  stage.send_receive(mail.sends, mail.receives);
  before_compute(stage, backend);
}

void make_room(MovingRoom& room, std::int64_t bytes, Backend& backend) {
  if (room.bytes.value >= bytes) return;
  room.memory.reset();
  room.memory = backend.allocate({bytes}, "experts on their way between ranks");
  room.bytes = {bytes};
}

/// What of a tensor moves with its expert.
struct Part {
  Backend::Memory memory;
  DType type;
  bool away;  ///< in host memory
};
std::vector<Part> memories(const Parameters& parameters, const Parameter& p) {
  if (!p.trained) return {{p.value, p.held, p.away}};
  const bool away = parameters.bytes().host_optimizer.value > 0;
  return {{p.value, p.held, false}, {p.first_moment, DType::f32, away}, {p.second_moment, DType::f32, away}};
}

/// Whole words: tensors begin 256 bytes apart.
std::int64_t words_of(std::int64_t bytes) { return ceil_div(bytes, 4); }
/// Room for what arrives; what lies in host memory leaves by way of the device too.
std::int64_t room_of(std::int64_t bytes, bool away) {
  const std::int64_t arriving = 4 * words_of(bytes);
  return away ? ceil_div(arriving, 256) * 256 + arriving : arriving;
}

bool moves(const Parameter& p, const ExpertSlots& to) {
  const auto it = to.find(p.layer);
  return p.slots && it != to.end() && *it->second != *p.slots;
}

}  // namespace

Bytes moving_room(const Program& program, const Problem& problem, const Plan& plan, const Backend& backend, bool moves) {
  std::int64_t most = 0;
  if (!places_experts(plan)) return {};
  const std::int64_t shards = plan.parallelism.expert_shard;
  for (const Block& b : program.blocks)
    for (WeightId id = 0; id < static_cast<WeightId>(b.weights.size()); ++id) {
      const Weight& w = b.weights[index(id)];
      if (!is_expert(w.split)) continue;
      // Words of a tensor as it is held, and of its moments; gradients of all copies where their first slots are on one rank.
      const std::int64_t floats = 4 * ceil_div(w.shape.elements(), shards), held = held_bytes(b, id, problem, backend, shards).value;
      if (moves) most = std::max({most, room_of(held, !w.trained && offloads_weights(plan.offload)), w.trained ? room_of(floats, offloads_optimizer(plan.offload)) : 0});
      if (w.trained) most = std::max(most, 4 * plan.experts.replicas * (w.shape.elements() / w.shape[0]));
    }
  return {most};
}

CommCounter moving_volume(const Parameters& parameters, const RankPlace& place, const ExpertSlots& to) {
  CommCounter out;
  for (const Parameter& p : parameters.all())
    if (moves(p, to))
      for (const Part& part : memories(parameters, p))
        count(out, moving_parcels(p, part.type, to.at(p.layer), place), place.in_stage());
  return out;
}

void move_experts(Parameters& parameters, const ExpertSlots& to, RankGroups& ranks, Backend& backend,
                  MovingRoom& room) {
  const int mine = ranks.place().in_stage();
  for (const Parameter& p : parameters.all()) {
    if (!moves(p, to)) continue;
    for (const auto& [memory, type, away] : memories(parameters, p)) {
      const std::int64_t bytes = stored_bytes(type, p.held_shape()).value, words = words_of(bytes), all = room_of(bytes, away);
      make_room(room, all, backend);
      const TensorView waiting{room.memory.get(), DType::i32, {words}}, lies{memory.get(), DType::i32, {words}},
          leaving = away ? TensorView{room.memory.get() + (all - 4 * words), DType::i32, {words}} : lies;
      backend.clear(waiting);
      if (away) backend.copy(lies, leaving);
      Mail mail;
      for (const Parcel& parcel : moving_parcels(p, type, to.at(p.layer), ranks.place())) {
        if (parcel.from.rank == mine)
          mail.sends.push_back({leaving.data + parcel.from.at, parcel.bytes, DType::u8, parcel.to.rank});
        if (parcel.to.rank == mine)
          mail.receives.push_back({room.memory.get() + parcel.to.at, parcel.bytes, DType::u8, parcel.from.rank});
      }
      deliver(mail, ranks, backend);
      backend.copy(waiting, lies);
    }
  }
  backend.wait();
  parameters.set_slots(to);
}

void reduce_replicas(Parameters& parameters, RankGroups& ranks, Backend& backend, MovingRoom& room) {
  const int mine = ranks.place().in_stage();
  for (const Parameter& p : parameters.all()) {
    const std::vector<Parcel> parcels = replica_parcels(p, ranks.place());
    std::int64_t arriving = 0;
    for (const Parcel& parcel : parcels) arriving += parcel.to.rank == mine ? parcel.bytes : 0;
    make_room(room, arriving, backend);
    Mail mail;
    arriving = 0;
    for (const Parcel& parcel : parcels) {
      if (parcel.from.rank == mine)
        mail.sends.push_back({p.gradient.get() + parcel.from.at, parcel.bytes, DType::u8, parcel.to.rank});
      if (parcel.to.rank == mine)
        mail.receives.push_back({room.memory.get() + arriving, parcel.bytes, DType::u8, parcel.from.rank}),
            arriving += parcel.bytes;
    }
    deliver(mail, ranks, backend);
    arriving = 0;
    const auto view = [](std::byte* at, std::int64_t bytes) { return TensorView{at, DType::f32, {bytes / 4}}; };
    for (const Parcel& parcel : parcels) {
      if (parcel.to.rank == mine)
        backend.add(view(room.memory.get() + arriving, parcel.bytes),
                    view(p.gradient.get() + parcel.to.at, parcel.bytes), 1),
            arriving += parcel.bytes;
      if (parcel.from.rank == mine) backend.clear(view(p.gradient.get() + parcel.from.at, parcel.bytes));
    }
  }
}

void spread_replicas(Parameters& parameters, RankGroups& ranks, Backend& backend) {
  const int mine = ranks.place().in_stage();
  for (const Parameter& p : parameters.all()) {
    Mail mail;
    for (const Parcel& parcel : replica_parcels(p, ranks.place())) {
      if (parcel.to.rank == mine)
        mail.sends.push_back({p.gradient.get() + parcel.to.at, parcel.bytes, DType::u8, parcel.from.rank});
      if (parcel.from.rank == mine)
        mail.receives.push_back({p.gradient.get() + parcel.from.at, parcel.bytes, DType::u8, parcel.to.rank});
    }
    deliver(mail, ranks, backend);
  }
}

CommCounter replica_volume(const Parameters& parameters, const RankPlace& place) {
  CommCounter out;
  for (const Parameter& p : parameters.all()) {
    const std::vector<Parcel> parcels = replica_parcels(p, place);
    count(out, parcels, place.in_stage());
    count(out, parcels, place.in_stage(), true);
  }
  return out;
}

}  // namespace moeplan
