#include "executor/ranks/messages.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/program/schedules/schedule.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Activations or gradients of a micro-batch that leave a virtual stage.
struct Message {
  bool gradients = false;
  std::int32_t from = 0, micro_batch = 0;
  auto operator<=>(const Message&) const = default;
};

/// What a stage does, in order: it computes for a time, or leaves a message for a stage, or needs one from it.
struct Act {
  enum class Kind : std::uint8_t { compute, send, receive } kind = Kind::compute;
  int peer = 0;
  Message message{};
  std::int64_t time = 0;
};

std::vector<Act> acts_of(const Plan& plan, int stage) {
  const std::int32_t stages = plan.parallelism.pp, last = stages * plan.virtual_stages - 1;
  std::vector<Act> out;
  const auto here = [&](std::int32_t chunk) { return chunk * stages + stage; };
  const auto send = [&](bool gradients, std::int32_t chunk, std::int32_t j) {
    const std::int32_t at = here(chunk), to = at + (gradients ? -1 : 1);
    if (to >= 0 && to <= last) out.push_back({Act::Kind::send, to % stages, {gradients, at, j}, 0});
  };
  const auto receive = [&](bool gradients, std::int32_t chunk, std::int32_t j) {
    const std::int32_t from = here(chunk) + (gradients ? 1 : -1);
    if (from >= 0 && from <= last) out.push_back({Act::Kind::receive, from % stages, {gradients, from, j}, 0});
  };
  for (const Turn& t : turns(plan, stage)) {
    const bool both = t.kind == Turn::Kind::both, forward = both || t.kind == Turn::Kind::forward,
               backward = both || t.kind == Turn::Kind::backward;
    const std::int32_t chunk = both ? t.forward_chunk : t.chunk, j = both ? t.forward_micro_batch : t.micro_batch;
    if (forward) receive(false, chunk, j);
    if (backward) receive(true, t.chunk, t.micro_batch);
    out.push_back(
        {Act::Kind::compute, 0, {}, (forward ? 1 : 0) + (backward ? 2 : 0) + (t.kind == Turn::Kind::weight ? 1 : 0)});
    if (forward) send(false, chunk, j);
    if (backward) send(true, t.chunk, t.micro_batch);
  }
  return out;
}

/// A stage in the play.
struct Player {
  std::vector<Act> acts;
  std::size_t at = 0;
  std::int64_t clock = 0;
  bool waits = false;
  std::vector<const Act*> pending{};                     ///< sent with the next call
  const Act* needs = nullptr;                            ///< in the call that it is in
  std::size_t unsent = 0;                                ///< of that call
  std::vector<std::pair<std::size_t, Message>> taken{};  ///< (act before which, message), in the order of the calls
  std::set<Message> there{};
};

/// What each stage receives before which act.
class Play {
 public:
  explicit Play(const Plan& plan) {
    for (int s = 0; s < plan.parallelism.pp; ++s) players_.push_back({.acts = acts_of(plan, s)});
    letters_.resize(players_.size());
  }

  std::vector<std::pair<std::size_t, Message>> run(int stage) {
    while (true) {
      int next = -1;
      for (int s = 0; s < size(); ++s)
        if (const Player& p = of(s);
            !p.waits && !(p.at == p.acts.size() && p.pending.empty()) && (next < 0 || p.clock < of(next).clock))
          next = s;
      if (next < 0) break;
      act(next);
    }
    for (const Player& p : players_)
      if (p.waits) throw std::logic_error("stages that wait for each other");
    return of(stage).taken;
  }

 private:
  int size() const { return static_cast<int>(players_.size()); }
  Player& of(int s) { return players_[static_cast<std::size_t>(s)]; }

  void act(int s) {
    Player& p = of(s);
    if (p.at < p.acts.size() && p.acts[p.at].kind == Act::Kind::send) {
      p.pending.push_back(&p.acts[p.at++]);
      return;
    }
    const Act* now = p.at < p.acts.size() ? &p.acts[p.at] : nullptr;
    const bool receives = now && now->kind == Act::Kind::receive;
    if (p.pending.empty() && !receives) {
      p.clock += now->time;
      ++p.at;
      return;
    }
    if (receives && p.pending.empty() && p.there.contains(now->message)) {
      ++p.at;
      return;
    }
    // A call: what is pending goes out, and what is needed or has come is taken in.
    p.needs = receives ? now : nullptr;
    p.unsent = p.pending.size();
    p.waits = true;
    const std::int64_t when = p.clock;
    const std::vector<const Act*> sent = std::exchange(p.pending, {});
    for (const Act* a : sent) letters_[static_cast<std::size_t>(a->peer)].push_back({s, a});
    take(s, when);
    for (const Act* a : sent)
      if (of(a->peer).waits) take(a->peer, when);
  }

  /// Stage `s`, which waits, takes all there is for it.
  void take(int s, std::int64_t now) {
    Player& p = of(s);
    for (const auto& [from, act] : std::exchange(letters_[static_cast<std::size_t>(s)], {})) {
      p.taken.emplace_back(p.at, act->message);
      p.there.insert(act->message);
      --of(from).unsent;
      if (from != s) end_call(from, now);
    }
    end_call(s, now);
  }

  void end_call(int s, std::int64_t now) {
    Player& p = of(s);
    if (!p.waits || p.unsent > 0 || (p.needs && !p.there.contains(p.needs->message))) return;
    p.waits = false;
    p.clock = std::max(p.clock, now);
    if (std::exchange(p.needs, nullptr)) ++p.at;
  }

  std::vector<Player> players_;
  std::vector<std::deque<std::pair<int, const Act*>>> letters_;  ///< by stage: from whom, in the order sent
};

}  // namespace

void order_messages(Program& program, const Plan& plan) {
  if (plan.virtual_stages == 1 && plan.schedule != Schedule::expert_overlap) return;
  const std::vector<Act> acts = acts_of(plan, program.stage);
  const auto taken = Play(plan).run(program.stage);
  // Messages stand in the program as in the acts.
  std::vector<std::size_t> message_acts, message_instances;
  for (std::size_t a = 0; a < acts.size(); ++a)
    if (acts[a].kind != Act::Kind::compute) message_acts.push_back(a);
  std::map<Message, std::size_t> arrives;
  for (std::size_t i = 0; i < program.instances.size(); ++i)
    if (program.instances[i].phase == Phase::send_receive) message_instances.push_back(i);
  if (message_acts.size() != message_instances.size())
    throw std::logic_error("a stage's program has other messages than its schedule");
  for (std::size_t m = 0; m < message_acts.size(); ++m) {
    const Act& a = acts[message_acts[m]];
    const Instance& i = program.instances[message_instances[m]];
    const bool receives = i.sent.value == 0;
    if (receives != (a.kind == Act::Kind::receive) || i.micro_batch != a.message.micro_batch)
      throw std::logic_error("a stage's program has its messages in another order than its schedule");
    if (receives) arrives[a.message] = message_instances[m];
  }
  // Before which instance an act is: a message's own, or the first behind the message before it.
  const auto instance_of = [&](std::size_t act) {
    const auto m = static_cast<std::size_t>(std::lower_bound(message_acts.begin(), message_acts.end(), act) -
                                            message_acts.begin());
    if (m < message_acts.size() && message_acts[m] == act) return message_instances[m];
    return m == 0 ? std::size_t{0} : message_instances[m - 1] + 1;
  };
  std::map<std::size_t, std::vector<std::size_t>> before;  // instance -> receives in front of it
  for (const auto& [act, message] : taken) before[instance_of(act)].push_back(arrives.at(message));
  std::vector<Instance> out;
  std::vector<std::int32_t> now(program.instances.size(), -1);
  std::size_t placed = 0;
  const auto add = [&](std::size_t i) {
    ++placed;
    Instance each = program.instances[i];
    if (each.phase == Phase::forward_backward) {
      Instance forward = each;
      forward.phase = Phase::forward, forward.slot = each.forward_slot, forward.micro_batch = each.forward_micro_batch;
      each.phase = Phase::backward;
      forward.forward_slot = forward.forward_micro_batch = each.forward_slot = each.forward_micro_batch = -1;
      out.push_back(std::move(forward));
    }
    now[i] = static_cast<std::int32_t>(out.size());
    out.push_back(std::move(each));
  };
  for (std::size_t i = 0; i <= program.instances.size(); ++i) {
    if (const auto it = before.find(i); it != before.end())
      for (const std::size_t r : it->second) add(r);
    const bool moved =
        i < now.size() && program.instances[i].phase == Phase::send_receive && program.instances[i].sent.value == 0;
    if (i < now.size() && !moved) add(i);
  }
  if (placed != program.instances.size()) throw std::logic_error("a message that no call takes");
  for (Instance& i : out)
    for (std::int32_t& a : i.after) a = now[index(a)];
  program.instances = std::move(out);
}

}  // namespace moeplan
