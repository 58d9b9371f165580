#include "sim/engine/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

Activity activity_of(const CommCall& call) {
  if (is_host_copy(call.collective)) return Activity::copy;
  switch (call.group) {
    case Group::expert: case Group::expert_tensor: return Activity::expert_communication;
    case Group::tensor: case Group::context: return Activity::tensor_communication;
    case Group::pipeline: return Activity::pipeline_exchange;
    default: return Activity::weight_communication;
  }
}

Track track_of(const BlockNode& node) {
  if (std::holds_alternative<HostWait>(node.call)) return Track::host;
  switch (node.lane) {
    case Lane::compute: return Track::compute;
    case Lane::expert_communication: return Track::expert_communication;
    case Lane::data_communication: return Track::data_communication;
    case Lane::copy: return Track::copy;
  }
  return Track::compute;
}

std::int32_t add_call(Job& job, const CommCall& call, Picoseconds duration, const Costs& costs) {
  JobCall out{.shown = {.collective = std::string(name_of(call.collective)), .group = std::string(name_of(call.group)),
                        .group_size = std::max<std::int64_t>(1, costs.shape(call.group).size), .group_stride = std::max<std::int64_t>(1, costs.shape(call.group).stride), .in_bytes = call.payload.value, .out_bytes = call.payload.value},
              .group = call.group, .bytes = costs.bytes ? costs.bytes(call) : TierBytes{}, .duration = duration};
  if (costs.taken) {
    const Costs::Taken taken = costs.taken(call, to_seconds(duration));
    out.multiprocessors = taken.multiprocessors;
    out.memory = taken.memory;
    out.beside_compute = taken.beside_compute;
  }
  if (call.collective == Collective::all_gather) out.shown.in_bytes /= out.shown.group_size;
  if (call.collective == Collective::reduce_scatter) out.shown.out_bytes /= out.shown.group_size;
  for (std::size_t i = 0; i < job.calls.size(); ++i)
    if (job.calls[i].shown == out.shown && job.calls[i].duration == duration && job.calls[i].bytes == out.bytes && job.calls[i].group == call.group) return static_cast<std::int32_t>(i);
  job.calls.push_back(std::move(out));
  return static_cast<std::int32_t>(job.calls.size() - 1);
}

/// Collectives one after the other on the data lane; those over a group of one or of nothing are left out.
class Chain {
 public:
  Chain(Job& job, const Costs& costs, std::string name) : job_(job), costs_(costs) { graph_.name = job.name(name); }
  void add(Collective collective, Group group, Bytes payload) {
    if (payload.value <= 0 || costs_.shape(group).size <= 1) return;
    BlockNode node;
    node.call = CommCall{.collective = collective, .group = group, .payload = payload};
    node.lane = Lane::data_communication;
    const CommCall& call = std::get<CommCall>(node.call);
    Step step{.track = Track::data_communication, .kind = Activity::weight_communication, .duration = to_picoseconds(costs_.price(node).median), .name = job_.name(call_name(node))};
    step.call = add_call(job_, call, step.duration, costs_);
    if (!graph_.steps.empty()) step.after.push_back(static_cast<std::int32_t>(graph_.steps.size() - 1));
    graph_.steps.push_back(std::move(step));
  }
  /// A copy over the host link, before what follows.
  void copy(Collective direction, Bytes payload) {
    if (payload.value <= 0) return;
    BlockNode node;
    node.call = CommCall{.collective = direction, .group = Group::world, .payload = payload};
    node.lane = Lane::copy;
    Step step{.track = Track::copy, .kind = Activity::copy, .duration = to_picoseconds(costs_.price(node).median), .name = job_.name(call_name(node))};
    if (!graph_.steps.empty()) step.after.push_back(static_cast<std::int32_t>(graph_.steps.size() - 1));
    graph_.steps.push_back(std::move(step));
  }
  std::int32_t finish() {
    if (graph_.steps.empty()) return -1;
    job_.passes.push_back(std::move(graph_));
    return static_cast<std::int32_t>(job_.passes.size() - 1);
  }

 private:
  Job& job_;
  const Costs& costs_;
  StepGraph graph_;
};

/// Compiles the tasks of one program.
class ProgramCompiler {
 public:
  ProgramCompiler(Job& job, const Program& program, const Costs& costs, const Parallelism& parallelism) : job_(job), p_(program), costs_(costs), par_(parallelism) {}

  JobProgram run() {
    for (const Block& b : p_.blocks)
      for (const BlockPass pass : {BlockPass::forward, BlockPass::backward, BlockPass::weight_backward}) passes_.push_back(add_pass(compile_pass(job_, b, pass, costs_)));
    for (const Slot& s : p_.slots) {
      auto known = std::find_if(sharded_.begin(), sharded_.end(), [&](const Sharded& k) { return k.block == s.block && k.sharding == s.sharding; });
      if (known == sharded_.end()) {
        const std::string& name = p_.blocks[index(s.block)].name;
        Chain gather(job_, costs_, "gather of " + name), reduce(job_, costs_, "reduce of " + name);
        gather.copy(Collective::from_host, s.sharding.host_fetch);
        gather.add(Collective::all_gather, Group::data_shard, s.sharding.dense_gather);
        gather.add(Collective::all_gather, Group::expert_data_shard, s.sharding.expert_gather);
        reduce.add(Collective::all_reduce, Group::tensor, s.sharding.tensor_reduce);
        reduce.add(Collective::reduce_scatter, Group::data_shard, s.sharding.dense_reduce);
        reduce.add(Collective::all_reduce, Group::data_replicate, share(s.sharding.dense_reduce, par_.dp_shard * par_.cp));
        reduce.add(Collective::reduce_scatter, Group::expert_data_shard, s.sharding.expert_reduce);
        reduce.add(Collective::all_reduce, Group::expert_data_replicate, share(s.sharding.expert_reduce, par_.expert_shard));
        sharded_.push_back({s.block, s.sharding, gather.finish(), reduce.finish()});
        known = sharded_.end() - 1;
      }
      of_slot_.push_back(static_cast<std::size_t>(known - sharded_.begin()));
    }
    for (std::size_t i = 0; i < p_.instances.size(); ++i) add(i);
    return std::move(out_);
  }

 private:
  struct Sharded {
    std::int32_t block;
    SlotSharding sharding;
    std::int32_t gather, reduce;
  };
  std::int32_t add_pass(StepGraph pass) {
    job_.passes.push_back(std::move(pass));
    return static_cast<std::int32_t>(job_.passes.size() - 1);
  }
  std::int32_t pass_of(std::int32_t slot, BlockPass pass) const { return passes_[3 * index(p_.slots[index(slot)].block) + static_cast<std::size_t>(pass)]; }
  /// A forward and a backward pass side by side, compiled when a pair of blocks first meets.
  std::int32_t pair_of(std::int32_t forward_slot, std::int32_t backward_slot) {
    const std::int32_t f = p_.slots[index(forward_slot)].block, b = p_.slots[index(backward_slot)].block;
    const auto [it, fresh] = pairs_.try_emplace({f, b}, -1);
    if (fresh) it->second = add_pass(compile_pass(job_, side_by_side(p_.blocks[index(f)], p_.blocks[index(b)]), BlockPass::forward, costs_));
    return it->second;
  }
  static Bytes share(Bytes b, int degree) { return {b.value / std::max(1, degree)}; }

  void add(std::size_t i) {
    const Instance& x = p_.instances[i];
    Task t{.layer = x.slot >= 0 ? p_.slots[index(x.slot)].layer : -1, .micro_batch = x.micro_batch};
    switch (x.phase) {
      case Phase::release: out_.task_of.push_back(-1); return;   // frees memory, takes no time
      case Phase::forward: t.pass = pass_of(x.slot, BlockPass::forward); break;
      case Phase::backward: t.pass = pass_of(x.slot, BlockPass::backward); break;
      case Phase::weight_backward: t.pass = pass_of(x.slot, BlockPass::weight_backward); break;
      case Phase::forward_backward: t.pass = pair_of(x.forward_slot, x.slot); break;
      case Phase::gather: t.pass = sharded_[of_slot_[index(x.slot)]].gather; t.queue = Queue::data; break;
      case Phase::reduce: t.pass = sharded_[of_slot_[index(x.slot)]].reduce; t.queue = Queue::data; break;
      case Phase::optimizer: t.pass = optimizer(); break;
      case Phase::send_receive: message(t, x); break;
    }
    if (t.kind == Task::Kind::pass && t.pass < 0) {   // nothing to communicate: whoever waits for it waits for what it waited for
      out_.task_of.push_back(-1);
      return;
    }
    const auto wait = [&](std::int32_t task) {
      if (task >= 0 && std::find(t.after.begin(), t.after.end(), task) == t.after.end()) t.after.push_back(task);
    };
    for (const std::int32_t a : x.after) wait(out_.task_of[index(a)]);
    const bool hands_back = t.kind == Task::Kind::send && !t.downstream, runs = t.queue == Queue::main && x.phase != Phase::optimizer;
    const Turn turn = runs ? turn_of(x) : Turn{};
    const bool new_pass = runs && turn != turn_;
    if (x.phase == Phase::gather) {
      wait(last_main_);
      for (const std::int32_t r : receives_) wait(r);
    }
    if (x.phase == Phase::optimizer) { wait(last_main_); wait(last_data_); }
    if (new_pass || hands_back) wait(last_reduce_);
    const auto task = static_cast<std::int32_t>(out_.tasks.size());
    if (runs) turn_ = turn;
    if (t.queue == Queue::main) {
      last_main_ = task;
      receives_.clear();
    }
    if (t.queue == Queue::data) last_data_ = task;
    if (x.phase == Phase::reduce) last_reduce_ = task;
    if (t.kind == Task::Kind::receive) receives_.push_back(task);
    out_.tasks.push_back(std::move(t));
    out_.task_of.push_back(task);
  }

  /// The turn that an instance belongs to; what of two passes side by side runs alone belongs to the turn of both.
  Turn turn_of(const Instance& x) const {
    const auto chunk = p_.slots[index(x.slot)].chunk;
    Turn t{.chunk = chunk, .micro_batch = x.micro_batch};
    if (x.phase == Phase::forward) {
      if (turn_.kind == Turn::Kind::both && turn_.forward_chunk == chunk && turn_.forward_micro_batch == x.micro_batch) return turn_;
    } else if (x.phase == Phase::backward) {
      if (turn_.kind == Turn::Kind::both && turn_.chunk == chunk && turn_.micro_batch == x.micro_batch) return turn_;
      t.kind = Turn::Kind::backward;
    } else if (x.phase == Phase::weight_backward) {
      t.kind = Turn::Kind::weight;
    } else {
      t.kind = Turn::Kind::both;
      t.forward_chunk = p_.slots[index(x.forward_slot)].chunk;
      t.forward_micro_batch = x.forward_micro_batch;
    }
    return t;
  }

  void message(Task& t, const Instance& x) {
    const bool sending = x.sent.value > 0;
    t.kind = sending ? Task::Kind::send : Task::Kind::receive;
    t.queue = Queue::none;
    t.downstream = sending == x.with_next;   // activations go to the next stage, gradients to the one before
    if (!sending) return;
    BlockNode node;
    node.call = CommCall{.collective = Collective::send_receive, .group = Group::pipeline, .payload = x.sent};
    node.lane = Lane::data_communication;
    t.call = add_call(job_, std::get<CommCall>(node.call), to_picoseconds(costs_.price(node).median), costs_);
  }

  std::int32_t optimizer() {
    StepGraph g;
    g.name = job_.name("optimizer");
    Step norm{.track = Track::data_communication, .kind = Activity::weight_communication, .name = job_.name("gradient norm")};
    norm.call = add_call(job_, CommCall{.collective = Collective::all_reduce, .group = Group::world}, 0, costs_);
    g.steps.push_back(std::move(norm));
    StateBytes state = p_.resident;
    for (const Slot& s : p_.slots) state += s.state;
    if (state.trained_elements > 0) {
      BlockNode node;
      node.call = optimizer_call(state, p_.optimizer);
      Step step{.track = Track::compute, .kind = Activity::optimizer, .duration = to_picoseconds(costs_.price(node).median), .name = job_.name(std::string(name_of(p_.optimizer)))};
      step.after.push_back(0);
      if (state.host_optimizer.value > 0) {   // in and out at once, beside the steps over what is there
        node.call = optimizer_copy(state);
        Step copy{.track = Track::copy, .kind = Activity::copy, .duration = to_picoseconds(costs_.price(node).median), .name = job_.name("optimizer states from and to host")};
        copy.after.push_back(0);
        g.steps.push_back(std::move(copy));
      }
      g.steps.push_back(std::move(step));
    }
    job_.passes.push_back(std::move(g));
    return static_cast<std::int32_t>(job_.passes.size() - 1);
  }

  Job& job_;
  const Program& p_;
  const Costs& costs_;
  const Parallelism& par_;
  std::vector<std::int32_t> passes_;                ///< per block one of each BlockPass
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> pairs_;   ///< passes of two blocks side by side
  std::vector<Sharded> sharded_;
  std::vector<std::size_t> of_slot_;
  std::int32_t last_main_ = -1, last_data_ = -1, last_reduce_ = -1;
  std::vector<std::int32_t> receives_;              ///< listed since the last block
  Turn turn_{.micro_batch = -1};                    ///< of the last block listed
  JobProgram out_;
};

}  // namespace

std::string call_name(const BlockNode& node) {
  if (const OpCall* op = std::get_if<OpCall>(&node.call)) return fmt::format("{} {}", kind(op->op), op->pass == Pass::forward ? "forward" : "backward");
  if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return std::string(name_of(comm->collective));
  return "host wait";
}

StepGraph compile_pass(Job& job, const Block& block, BlockPass pass, const Costs& costs) {
  const std::vector<BlockNode>& nodes = pass == BlockPass::forward ? block.forward : pass == BlockPass::backward ? block.backward : block.weight_backward;
  StepGraph g;
  g.name = job.name(fmt::format("{} of {}", pass == BlockPass::forward ? "forward" : pass == BlockPass::backward ? "backward" : "weight gradients", block.name));
  // What each call waits for, as in block_time: earlier writers of what it reads, its lane, the host's last wait.
  std::vector<std::vector<std::int32_t>> waits(nodes.size()), writers(block.values.size());
  std::array<std::int32_t, kTracks> lane{};
  lane.fill(-1);
  std::int32_t host = -1;
  std::vector<bool> ends_step(nodes.size(), false);
  const std::function<Seconds(const BlockNode&)> beside = costs.beside ? costs.beside(block) : nullptr;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto alias = [&](ValueId v) { return index(block.alias[index(v)]); };
    const Track track = track_of(nodes[i]);
    auto& w = waits[i];
    for (const ValueId v : nodes[i].reads) w.insert(w.end(), writers[alias(v)].begin(), writers[alias(v)].end());
    if (host >= 0) w.push_back(host);
    if (track == Track::host) host = static_cast<std::int32_t>(i);
    else if (std::int32_t& l = lane[static_cast<std::size_t>(track)]; true) {
      if (l >= 0) w.push_back(l);
      l = static_cast<std::int32_t>(i);
    }
    std::sort(w.begin(), w.end());
    w.erase(std::unique(w.begin(), w.end()), w.end());
    // A compute call that another lane waits for ends its step; of several the last, the lane being in order.
    std::int32_t last = -1;
    for (const std::int32_t a : w) if (track_of(nodes[index(a)]) == Track::compute) last = a;
    if (track != Track::compute && last >= 0) ends_step[index(last)] = true;
    for (const ValueId v : nodes[i].writes) writers[alias(v)].push_back(static_cast<std::int32_t>(i));
  }
  std::vector<std::int32_t> step_of(nodes.size(), -1);
  std::vector<std::vector<bool>> done_before;   ///< per step: steps that have ended when it starts
  std::int32_t open = -1;                       ///< compute step that may be extended
  std::int32_t last_compute = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const BlockNode& node = nodes[i];
    const Track track = track_of(node);
    const CommCall* comm = std::get_if<CommCall>(&node.call);
    const Activity kind = comm ? activity_of(*comm) : track == Track::host ? Activity::host_wait : node.recompute ? Activity::recompute : pass != BlockPass::forward || node.is_backward ? Activity::backward : Activity::forward;
    const Picoseconds duration = to_picoseconds(costs.price(node).median + (beside ? beside(node) : Seconds{}));
    const std::int32_t name = job.name(call_name(node));
    const OpCall* op = std::get_if<OpCall>(&node.call);
    const double at_memory = op && costs.memory_bound ? costs.memory_bound(*op, to_seconds(duration)) * static_cast<double>(duration) : 0;
    if (track == Track::compute && !comm && open >= 0 && g.steps[index(open)].kind == kind &&
        std::all_of(waits[i].begin(), waits[i].end(), [&](std::int32_t a) { const std::int32_t s = step_of[index(a)]; return s == open || done_before[index(open)][index(s)]; })) {
      Step& s = g.steps[index(open)];
      job.details[index(s.detail)].parts.push_back({s.duration, duration, name, kind});
      s.memory_bound = s.duration + duration > 0 ? static_cast<float>((s.memory_bound * static_cast<double>(s.duration) + at_memory) / static_cast<double>(s.duration + duration)) : 0;
      s.duration += duration;
      job.details[index(s.detail)].duration = s.duration;
      step_of[i] = open;
    } else {
      Step s{.track = track, .kind = kind, .duration = duration, .name = comm || track == Track::host ? name : g.name};
      std::vector<bool> done(g.steps.size() + 1, false);
      for (const std::int32_t a : waits[i]) {
        const std::int32_t before = step_of[index(a)];
        if (done[index(before)]) continue;
        done[index(before)] = true;
        for (std::size_t d = 0; d < done_before[index(before)].size(); ++d) if (done_before[index(before)][d]) done[d] = true;
      }
      // Only the last of what must have ended: the rest has ended by then.
      for (const std::int32_t a : waits[i]) {
        const std::int32_t before = step_of[index(a)];
        bool implied = std::find(s.after.begin(), s.after.end(), before) != s.after.end();
        for (const std::int32_t b : waits[i]) {
          const std::int32_t other = step_of[index(b)];
          implied = implied || (other != before && index(before) < done_before[index(other)].size() && done_before[index(other)][index(before)]);
        }
        if (!implied) s.after.push_back(before);
      }
      const auto self = static_cast<std::int32_t>(g.steps.size());
      if (comm && !is_host_copy(comm->collective)) {
        s.call = add_call(job, *comm, duration, costs);
        if (comm->collective == Collective::combine)
          for (const std::int32_t a : s.after) if (computes(g.steps[index(a)].kind)) g.arrows.push_back({a, self});
      } else if (track == Track::compute) {
        s.memory_bound = duration > 0 ? static_cast<float>(at_memory / static_cast<double>(duration)) : 0;
        s.detail = static_cast<std::int32_t>(job.details.size());
        job.details.push_back({duration, {{0, duration, name, kind}}});
        for (const std::int32_t a : s.after)
          if (g.steps[index(a)].call >= 0 && job.calls[index(g.steps[index(a)].call)].shown.collective == name_of(Collective::dispatch)) g.arrows.push_back({a, self});
      }
      step_of[i] = self;
      done.resize(g.steps.size() + 1);
      done_before.push_back(std::move(done));
      for (auto& d : done_before) d.resize(g.steps.size() + 1, false);
      g.steps.push_back(std::move(s));
      if (track == Track::compute) open = self;
    }
    if (track == Track::compute) {
      last_compute = static_cast<std::int32_t>(i);
      if (ends_step[index(last_compute)]) open = -1;
    }
  }
  return g;
}

std::vector<PlayedRank> folded(std::span<const Program> stages, const Parallelism& parallelism, const Costs& costs) {
  std::vector<PlayedRank> out;
  for (const Program& p : stages)
    out.push_back({.program = &p, .costs = &costs, .rank = static_cast<std::int64_t>(p.stage) * parallelism.stage_ranks(), .stands_for = parallelism.stage_ranks()});
  return out;
}

std::vector<PlayedRank> unfolded(std::span<const Program> stages, const Parallelism& parallelism, const Costs& costs) {
  std::vector<PlayedRank> out;
  for (const Program& p : stages)
    for (std::int64_t i = 0; i < parallelism.stage_ranks(); ++i)
      out.push_back({.program = &p, .costs = &costs, .rank = static_cast<std::int64_t>(p.stage) * parallelism.stage_ranks() + i});
  return out;
}

Job make_job(std::span<const PlayedRank> ranks, const Parallelism& parallelism) {
  Job job;
  job.world = parallelism.world();
  std::map<std::pair<const Program*, const Costs*>, std::int32_t> compiled;
  std::map<std::int64_t, std::int32_t> position;
  for (std::size_t i = 0; i < ranks.size(); ++i) position[ranks[i].rank] = static_cast<std::int32_t>(i);
  const std::int64_t per_stage = parallelism.stage_ranks();
  // The last stage comes before the first: virtual stages wrap around.
  const auto at = [&](std::int64_t rank) { const auto it = position.find((rank + job.world) % job.world); return it == position.end() ? -1 : it->second; };
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<std::int32_t>> members;   // by group and its first rank
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PlayedRank& r = ranks[i];
    const auto [it, fresh] = compiled.try_emplace({r.program, r.costs}, static_cast<std::int32_t>(job.programs.size()));
    if (fresh) {
      job.programs.push_back(ProgramCompiler(job, *r.program, *r.costs, parallelism).run());
    }
    job.ranks.push_back({.rank = r.rank, .stage = r.program->stage, .stands_for = r.stands_for, .program = it->second,
                         .before = at(r.rank - per_stage), .behind = at(r.rank + per_stage), .slowdown = r.slowdown});
    for (const auto& [group, name] : EnumNames<Group>::names) {
      if (group == Group::pipeline) continue;
      const GroupShape shape = r.costs->shape(group);
      const std::int64_t member = r.rank / shape.stride % shape.size;
      const std::int64_t first = group == Group::world ? 0 : r.rank - member * shape.stride;
      members[{static_cast<std::size_t>(group), first}].push_back(static_cast<std::int32_t>(i));
    }
  }
  for (const auto& [key, list] : members) {
    if (list.size() < 2) continue;
    for (const std::int32_t r : list) job.ranks[index(r)].groups[key.first] = static_cast<std::int32_t>(job.groups.size());
    job.groups.push_back(list);
  }
  return job;
}

}  // namespace moeplan
