#include "executor/ranks/volume.hpp"

#include <map>
#include <numeric>
#include <stdexcept>

#include "executor/arena/arena.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/pieces.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

class Account {
 public:
  Account(const Program& program, const Problem& problem, const Parallelism& parallelism, const HeldType& held)
      : p_(program), problem_(problem), place_{program.rank, parallelism}, held_(held) {}

  CommCounters run(std::span<const RoutesOf> routes) {
    for (const RoutesOf& r : routes) routes_[{r.slot, r.micro_batch}] = &r.routes;
    std::int64_t sends = 0, sent = 0;  // waiting for the message that takes them along
    const auto send_now = [&] {
      if (sends > 0) add(CommKind::send_receive, sent, sent);
      sends = sent = 0;
    };
    for (std::size_t at = 0; at < p_.instances.size(); ++at) {
      const Instance& i = p_.instances[at];
      switch (i.phase) {
        case Phase::gather:
          gather(block(i));
          break;
        case Phase::reduce:
          reduce(block(i));
          break;
        case Phase::forward:
          send_now();
          nodes(i, block(i), block(i).forward);
          break;
        case Phase::backward:
          send_now();
          nodes(i, block(i), block(i).backward);
          break;
        case Phase::weight_backward:
          send_now();
          break;
        case Phase::send_receive:
          // Both ends are in bf16; a backend may hold it wider.
          if (i.sent.value > 0)
            ++sends, sent += i.sent.value / 2 * plain_bytes(held_(DType::bf16));
          else if (++sends; !goes_with_next(p_, at))
            send_now();
          break;
        default:
          break;
      }
    }
    send_now();
    return out_;
  }

 private:
  const Block& block(const Instance& i) const { return p_.blocks[index(p_.slots[index(i.slot)].block)]; }
  void add(CommKind kind, std::int64_t payload, std::int64_t sent) {
    CommCounter& c = out_[static_cast<std::size_t>(kind)];
    ++c.calls;
    c.payload += payload;
    c.sent += sent;
  }
  void ring(CommKind kind, std::int64_t payload, int ranks) {
    add(kind, payload, ring_sent_bytes(kind, payload, ranks));
  }

  void gather(const Block& b) {
    for (const Weight& w : b.weights)
      if (const int n = place_.size(shard_group(w.split)); n > 1)
        ring(CommKind::all_gather, ceil_div(w.shape.elements(), n) * n * plain_bytes(held_(w.dtype)), n);
  }

  void reduce(const Block& b) {
    for (std::size_t w = 0; w < b.weights.size(); ++w) {
      if (b.weight_grads[w] < 0) continue;
      const Weight& weight = b.weights[w];
      for (const AlikeRows& a : alike_rows(weight, place_.parallelism))
        ring(CommKind::all_reduce, a.elements * plain_bytes(held_(problem_.runtime.reduce)), a.ranks);
      const int n = place_.size(shard_group(weight.split)), replicas = place_.size(replicate_group(weight.split));
      const std::int64_t part = ceil_div(weight.shape.elements(), n) * plain_bytes(held_(problem_.runtime.reduce));
      if (n > 1) ring(CommKind::reduce_scatter, part * n, n);
      if (replicas > 1) ring(CommKind::all_reduce, part, replicas);
    }
  }

  void nodes(const Instance& i, const Block& b, const std::vector<BlockNode>& list) {
    for (const BlockNode& n : list) {
      const CommCall* comm = std::get_if<CommCall>(&n.call);
      if (!comm || is_host_copy(comm->collective)) continue;
      const auto bytes = [&](ValueId v) {
        return plain_bytes(held_(b.values[index(v)].dtype)) * b.values[index(v)].shape.elements();
      };
      const ValueId from = n.reads.front(), to = n.writes.front();
      const int ranks = place_.size(comm->group);
      if (comm->group == Group::context && comm->collective == Collective::send_receive && comm->rows == 0) {
        std::int64_t round = 0;
        for (const ValueId v : n.reads) round += bytes(v);
        add(CommKind::send_receive, round, round);
        continue;
      }
      if (comm->group == Group::context && comm->rows > 0) {
        passed(i, n, *comm, b);
        continue;
      }
      if (comm->group == Group::expert_tensor) {
        neighbours(i, comm->collective, b.values[index(to)]);
        continue;
      }
      switch (comm->collective) {
        case Collective::all_gather:
          ring(CommKind::all_gather, is_merge(b, n) ? comm->payload.value : bytes(to), ranks);
          break;
        case Collective::reduce_scatter:
          ring(CommKind::reduce_scatter, bytes(from), ranks);
          break;
        case Collective::all_reduce:
          ring(CommKind::all_reduce, bytes(from), ranks);
          break;
        case Collective::all_to_all:
          add(CommKind::all_to_all, bytes(from), bytes(from) - bytes(from) / ranks);
          break;
        case Collective::dispatch:
        case Collective::combine:
          if (n.operands.empty())
            rows(i, comm->collective, b.values[index(to)], *comm, piece_of(b, n));
          else
            tokens(i, n, b.values[index(to)], *comm);
          break;
        default:
          throw std::logic_error("a call that the executor does not run");
      }
    }
  }

  void rows(const Instance& i, Collective collective, const Value& v, const CommCall& comm, std::int32_t piece) {
    const Routes& whole = *routes_.at({i.slot, i.micro_batch});
    const Routes& r = piece < 0 ? whole : whole.parts.at(index(piece));
    const std::int64_t row = v.shape[v.shape.rank - 1] * plain_bytes(held_(v.dtype));
    const auto own = static_cast<std::size_t>(place_.index(comm.group));
    const std::int64_t kept_here = r.sent[own];
    const std::int64_t all = collective == Collective::dispatch ? r.sent_rows() : r.received_rows();
    add(CommKind::all_to_all, all * row, (all - kept_here) * row);
  }

  /// Tokens once to each rank: their rows; on the way there the first time also the choices and weights of their
  /// copies, and with the gradients of the results those of the weights come back.
  void tokens(const Instance& i, const BlockNode& n, const Value& v, const CommCall& comm) {
    const Routes& r = *routes_.at({i.slot, i.micro_batch});
    const std::int64_t row = v.shape[v.shape.rank - 1] * plain_bytes(held_(v.dtype)),
                       top_k = comm.rows / std::max<std::int64_t>(1, comm.tokens);
    const bool dispatch = comm.collective == Collective::dispatch;
    for (const HopRows& hop : r.hops) {
      const auto there = [&](std::int64_t bytes) {
        add(CommKind::all_to_all, hop.sent * bytes, (hop.sent - hop.own) * bytes);
      };
      const auto back = [&](std::int64_t bytes) {
        add(CommKind::all_to_all, hop.received * bytes, (hop.received - hop.own) * bytes);
      };
      if (!dispatch) {
        back(row);
        continue;
      }
      there(row);
      if (n.operands.size() == 3 && i.phase == Phase::forward) there(4 * 2 * top_k);
      if (n.operands.size() == 2 && n.gradients.front() >= 0) back(4 * top_k);
    }
  }

  /// Rows or states from run to run; between two runs of one rank nothing travels.
  void passed(const Instance& i, const BlockNode& n, const CommCall& comm, const Block& b) {
    const ContextRuns dealt{.sequences = 1, .ranks = place_.size(Group::context), .per_rank = comm.rows};
    const bool rows = comm.collective == Collective::send_receive, scan = comm.collective == Collective::state_scan,
               back = rows ? n.reads.size() == 2 * n.writes.size() : i.phase == Phase::backward;
    const std::int64_t mine = place_.index(Group::context), all = dealt.ranks * dealt.per_rank;
    std::int64_t bytes = 0;  // of one of this rank's runs
    for (std::size_t v = 0; v < n.writes.size(); ++v) {
      const Value& what = b.values[index(scan || (back && rows) ? n.reads[v] : n.writes[v])];
      bytes += plain_bytes(held_(what.dtype)) * what.shape.elements() / dealt.per_rank;
    }
    for (std::int64_t step = 1; step < all && (scan || step == 1); step *= 2) {
      std::int64_t sent = 0, received = 0;
      for (std::int64_t j = 0; j < dealt.per_rank; ++j) {
        const std::int64_t g = dealt.run(mine, j);
        const auto elsewhere = [&](std::int64_t run) { return run >= 0 && run < all && dealt.owner(run) != mine; };
        sent += elsewhere(back ? g - step : g + step), received += elsewhere(back ? g + step : g - step);
      }
      if (rows || (scan && sent + received > 0)) add(CommKind::send_receive, sent * bytes, sent * bytes);
      for (std::int64_t k = 0; k < sent && !rows && !scan; ++k) add(CommKind::send, bytes, bytes);
      for (std::int64_t k = 0; k < received && !rows && !scan; ++k) add(CommKind::receive, bytes, 0);
    }
  }

  /// Rows between expert-tensor ranks: all of this rank's to each other one; of a sum each one's part.
  void neighbours(const Instance& i, Collective collective, const Value& v) {
    const Routes& r = *routes_.at({i.slot, i.micro_batch});
    const std::int64_t row = v.shape[v.shape.rank - 1] * plain_bytes(held_(v.dtype)),
                       mine = std::accumulate(r.rows_of_expert.begin(), r.rows_of_expert.end(), std::int64_t{0}),
                       all = std::accumulate(r.of_neighbours.begin(), r.of_neighbours.end(), std::int64_t{0}),
                       others = place_.size(Group::expert_tensor) - 1;
    if (collective == Collective::all_gather)
      add(CommKind::send_receive, others * mine * row, others * mine * row);
    else
      add(CommKind::all_to_all, all * row, (all - mine) * row);
  }

  const Program& p_;
  const Problem& problem_;
  RankPlace place_;
  const HeldType& held_;
  std::map<std::pair<std::int32_t, std::int32_t>, const Routes*> routes_;
  CommCounters out_{};
};

}  // namespace

CommCounters predicted_volume(const Program& program, const Problem& problem, const Parallelism& parallelism,
                              const HeldType& held, std::span<const RoutesOf> routes) {
  return Account(program, problem, parallelism, held).run(routes);
}

}  // namespace moeplan
