#include "planner/slice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "planner/prices.hpp"
#include "sim/cost/groups.hpp"
#include "sim/cost/price.hpp"
#include "sim/load/expert_load.hpp"
#include "sim/load/random.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/routed_rows.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

const MoeFfn* routed_of(const LayerSpec& layer) {
  for (const Sublayer& s : layer.sublayers)
    if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) return moe;
  return nullptr;
}

/// Whole rows nearest to the shares that sum to `all`: rounded down, the rest to the largest fractions.
std::vector<std::int64_t> whole_rows(const Shares& shares, std::int64_t all) {
  std::vector<std::int64_t> out;
  std::vector<std::pair<double, std::size_t>> rest;
  for (std::size_t e = 0; e < shares.size(); ++e) {
    const double exact = shares[e] * static_cast<double>(all);
    out.push_back(static_cast<std::int64_t>(exact));
    rest.emplace_back(static_cast<double>(out.back()) - exact, e);
  }
  std::sort(rest.begin(), rest.end());
  const std::int64_t left = all - std::accumulate(out.begin(), out.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < left; ++i) ++out[rest[index(i) % rest.size()].second];
  return out;
}

/// Bytes read and written for each of a payload: it is copied (executor/slice), and what an exchange brings is put in order behind that (executor/cuda/rows.cu).
constexpr double kCopyPasses = 2, kExchangePasses = 4;

/// Prices one rank's program.
class Pricing {
 public:
  Pricing(const Problem& problem, const Plan& plan, const Program& program, const SliceDraw& draw)
      : plan_(plan),
        program_(program),
        draw_(draw),
        prices_(prices_of(problem, plan)),
        links_(problem.cluster, problem.runtime, expert_places(problem.model, plan.experts, plan.parallelism, problem.cluster), problem.profile) {}

  SliceForecast run(const Problem& problem, std::optional<Seconds> copies) {
    for (const Instance& i : program_.instances) switch (i.phase) {
        case Phase::forward:
        case Phase::backward:
        case Phase::weight_backward:
          pass(i);
          break;
        case Phase::gather:
          charge(Collective::all_gather, sharding(i).dense_gather, Group::data_shard);
          charge(Collective::all_gather, sharding(i).expert_gather, Group::expert_data_shard);
          break;
        case Phase::reduce:
          charge(Collective::reduce_scatter, sharding(i).dense_reduce, Group::data_shard);
          charge(Collective::reduce_scatter, sharding(i).expert_reduce, Group::expert_data_shard);
          break;
        case Phase::send_receive:
          charge(Collective::send_receive, i.sent + i.received, Group::pipeline);
          break;
        default:
          break;
      }
    StateBytes state = program_.resident;
    for (const Slot& s : program_.slots) state += s.state;
    if (state.trained_elements > 0)
      add(optimizer_call(state, problem.workload.optimizer), std::string(name_of(problem.workload.optimizer)));
    sum_up(held(copies));
    double below = 0, above = 0;  // calls of one operator err together, different operators independently
    for (const auto& [name, s] : spread_) below += s.first * s.first, above += s.second * s.second;
    out_.low = {std::max(0.0, out_.compute.value - std::sqrt(below))};
    out_.high = {out_.compute.value + std::sqrt(above)};
    for (double& b : out_.basis) b = out_.compute.value > 0 ? b / out_.compute.value : 0;
    return std::move(out_);
  }

 private:
  const SlotSharding& sharding(const Instance& i) const { return program_.slots[index(i.slot)].sharding; }

  void pass(const Instance& i) {
    const Slot& slot = program_.slots[index(i.slot)];
    const Block* block = &program_.blocks[index(slot.block)];
    Block loaded;
    double skew = 1;
    std::span<const std::int64_t> arriving;
    if (const auto rows = draw_.rows.find({slot.layer, i.micro_batch}); rows != draw_.rows.end()) {
      skew = draw_.busiest.at(rows->first);
      arriving = rows->second;
      const auto follows = routed_rows(*block);
      if (!follows) throw std::logic_error("a slice of a plan whose exchange is more than rows");
      if (follows->sent > 0) {
        const std::int64_t all = std::accumulate(rows->second.begin(), rows->second.end(), std::int64_t{0});
        loaded = *block;
        set_routed_scale(loaded, *follows, static_cast<double>(all) / static_cast<double>(follows->sent));
        block = &loaded;
      }
    }
    const auto& nodes = i.phase == Phase::forward    ? block->forward
                        : i.phase == Phase::backward ? block->backward
                                                     : block->weight_backward;
    const auto copied = copied_bytes(*block, prices_.runtime());
    for (const BlockNode& node : nodes) {
      if (const auto* call = std::get_if<OpCall>(&node.call)) {
        add(*call, fmt::format("{} {}", kind(call->op), call->pass == Pass::backward ? "backward" : "forward"), arriving, prices_.copies(copied(node)));
      } else if (const auto* comm = std::get_if<CommCall>(&node.call)) {
        if (is_host_copy(comm->collective)) continue;   // beside the calls, over the host link
        out_.communication += links_.price(*comm, group_shape(comm->group, plan_.parallelism), skew).median;
        moved_ += kExchangePasses * static_cast<double>(comm->payload.value);
      } else {
        out_.communication += links_.host_wait(group_shape(Group::expert, plan_.parallelism)).median;
      }
    }
  }

  /// `rows`: of each of the rank's experts; `beside`: what its operands' columns take.
  void add(const OpCall& call, const std::string& name, std::span<const std::int64_t> rows = {}, Seconds beside = {}) {
    if (!is_view(call.op) || beside.value > 0) priced_.push_back({prices_.rested(call, rows), name, beside});
  }
  void charge(Collective collective, Bytes payload, Group group) {
    if (payload.value <= 0) return;
    out_.communication += links_
                              .price({.collective = collective, .group = group, .payload = payload},
                                     group_shape(group, plan_.parallelism))
                              .median;
    moved_ += kCopyPasses * static_cast<double>(payload.value);
  }

  /// The clock at which these calls and the copies draw what the device may.
  HeldClock held(std::optional<Seconds> copies) {
    const PowerProfile* power = prices_.power();
    if (power == nullptr) return {};
    std::vector<Repeated> all{{prices_.copied(moved_, copies)}};
    for (const Priced& p : priced_)
      if (p.call.power.seconds > 0) all.push_back({p.call.power});
    const double clock = sustained_clock(*power, all);
    out_.clock = clock * power->boost;
    return with_ends(clock, true);
  }

  void sum_up(const HeldClock& clock) {
    for (const auto& [call, name, beside] : priced_) {
      const Estimate e = prices_.held(call, clock);
      out_.compute += e.median + beside;
      out_.operators[name] += e.median + beside;
      spread_[name].first += e.median.value - e.low.value;
      spread_[name].second += e.high.value - e.median.value;
      out_.basis[static_cast<std::size_t>(e.basis)] += (e.median + beside).value;
    }
  }

  struct Priced {
    Prices::Rested call;
    std::string name;
    Seconds beside{};
  };

  const Plan& plan_;
  const Program& program_;
  const SliceDraw& draw_;
  Prices prices_;
  Links links_;
  SliceForecast out_;
  std::vector<Priced> priced_;
  double moved_ = 0;  ///< bytes that stand for communication, read and written
  std::map<std::string, std::pair<double, double>> spread_;
};

}  // namespace

SliceDraw draw_slice(const Problem& problem, const Plan& plan, int rank) {
  const Parallelism& p = plan.parallelism;
  if (rank < 0 || rank >= p.world())
    throw InputError("--rank-slice", fmt::format("rank {} is outside the plan's {} ranks", rank, p.world()),
                     fmt::format("0 to {}", p.world() - 1));
  SliceDraw out;
  if (p.ep == 1) return out;
  std::vector<std::int32_t> moe;
  const MoeFfn* experts = nullptr;
  for (std::size_t l = 0; l < problem.model.layers.size(); ++l)
    if (const MoeFfn* f = routed_of(problem.model.layers[l])) moe.push_back(static_cast<std::int32_t>(l)), experts = f;
  if (!experts) return out;
  const int stage = rank / p.stage_ranks();
  const LayerRange mine = chunk_layers(plan, stage, 0);
  const std::int64_t local = experts->experts / p.ep, first = rank % p.stage_ranks() / p.etp % p.ep * local,
                     tokens = plan.micro_batch * problem.workload.sequence_length, sent = tokens * experts->top_k,
                     capacity = plan.experts.capacity_factor ? expert_capacity(tokens, experts->top_k, experts->experts,
                                                                               *plan.experts.capacity_factor)
                                                             : sent;
  const bool noise = !std::holds_alternative<UniformLoad>(problem.load.distribution) &&
                     !std::holds_alternative<TraceLoad>(problem.load.distribution);
  const Sampling sampling{.sequences = plan.micro_batch * p.ep,
                          .sequence_length = problem.workload.sequence_length,
                          .top_k = experts->top_k};
  const auto shares = expert_shares(problem.load, static_cast<std::int64_t>(moe.size()), experts->experts);
  double sum = 0;
  for (std::size_t m = 0; m < moe.size(); ++m) {
    if (moe[m] < mine.first || moe[m] >= mine.end) continue;
    for (std::int64_t j = 0; j < plan.micro_batches; ++j) {
      const Shares served =
          noise ? realised(shares[m], sampling, seed_of(problem.load.seed, m, static_cast<std::uint64_t>(j)))
                : shares[m];
      std::vector<std::int64_t> rows = whole_rows(served, sent * p.ep);
      for (std::int64_t& r : rows) r = std::min(r, capacity * p.ep);
      const std::pair key{moe[m], static_cast<std::int32_t>(j)};
      for (std::int64_t r = 0; r < p.ep; ++r) {
        const auto begin = rows.begin() + r * local;
        const double over =
            static_cast<double>(std::accumulate(begin, begin + local, std::int64_t{0})) / static_cast<double>(sent);
        double& busiest = out.busiest[key];
        busiest = std::max(busiest, over);
        if (r * local == first) {
          out.most = std::max(out.most, over);
          sum += over;
        }
      }
      out.rows[key] = {rows.begin() + first, rows.begin() + first + local};
    }
  }
  if (!out.rows.empty()) out.mean = sum / static_cast<double>(out.rows.size());
  return out;
}

SliceForecast slice_forecast(const Problem& problem, const Plan& plan, int rank, const SliceDraw& draw, std::optional<Seconds> copies) {
  const Program program = lower(problem, plan, rank);
  return Pricing(problem, plan, program, draw).run(problem, copies);
}

}  // namespace moeplan
