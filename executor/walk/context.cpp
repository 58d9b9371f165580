#include "executor/walk/context.hpp"

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

ContextRuns context_runs_of(const Problem& problem, const Plan& plan) {
  return {.sequences = plan.micro_batch, .ranks = plan.parallelism.cp, .per_rank = context_runs(problem.model, plan)};
}

Batch context_share(const Batch& batch, const ContextRuns& runs, std::int64_t rank) {
  if (runs.ranks == 1) return batch;
  if (!batch.starts.empty())
    throw InputError("data", "packed or padded documents over context ranks are not run",
                     "documents as long as their sequence, one each (--no-packing, --data random), or cp = 1");
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size()), length = tokens / runs.sequences;
  Batch out{.tokens = {}, .labels = {}, .starts = {}, .positions = {}};
  runs.each(rank, tokens / runs.ranks, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
    for (std::int64_t t = first; t < first + rows; ++t) {
      out.tokens.push_back(batch.tokens[static_cast<std::size_t>(t)]);
      out.labels.push_back(batch.labels[static_cast<std::size_t>(t)]);
      out.positions.push_back(static_cast<std::int32_t>(t % length));
    }
  });
  return out;
}

namespace {

std::int64_t rows_of(const TensorView& t) { return t.shape.elements() / width_of(t); }

}  // namespace

/// Rows and columns of a tensor as a view.
TensorView Walk::part_of(const TensorView& t, std::int64_t row, std::int64_t rows, std::int64_t column,
                         std::int64_t columns) {
  const std::int64_t base = t.columns ? t.base_columns : width_of(t);
  TensorView out{t.data + row * base * plain_bytes(t.dtype), t.dtype, {rows, columns}};
  if (!t.columns && columns == base) return out;
  auto& kept = slices_[{t.columns, column, columns}];
  if (kept.empty())
    for (std::int64_t c = column; c < column + columns; ++c)
      kept.push_back(t.columns ? (*t.columns)[static_cast<std::size_t>(c)] : static_cast<std::int32_t>(c));
  out.columns = &kept, out.base_columns = base;
  return out;
}

/// Rows of all context ranks in the order of the sequences, columns for rows, and the ways back. What is sent lies in
/// the first half of the staging memory, what arrives in the second.
void Walk::exchange_context(const CommCall& comm, const TensorView& from, const TensorView& to) {
  Communicator& group = ranks_->need(Group::context);
  const ContextRuns runs = context_runs_of(problem_, plan_);
  const std::int64_t n = group.size(), elements = std::max(from.shape.elements(), to.shape.elements());
  const Wire wire = wire_of(from.dtype);
  const auto staged = [&](bool arrived, std::int64_t first, std::int64_t rows, std::int64_t width) {
    return TensorView{
        staging_.get() + ((arrived ? elements : 0) + first) * plain_bytes(from.dtype), from.dtype, {rows, width}};
  };
  const bool to_sequences = rows_of(to) > rows_of(from);
  const TensorView &part = to_sequences ? from : to, &whole = to_sequences ? to : from;
  const std::int64_t rows = rows_of(part), width = width_of(whole), block = rows * width;
  const auto columns = [&](std::int64_t rank) {
    return comm.collective == Collective::all_to_all ? part_of(part, 0, rows, rank * width, width)
                                                     : part_of(part, 0, rows, 0, width);
  };
  const auto reorder = [&](bool arrived) {
    for (std::int64_t r = 0; r < n; ++r)
      runs.each(r, rows, [&](std::int64_t here, std::int64_t there, std::int64_t count) {
        const TensorView ours = staged(arrived, r * block + here * width, count, width),
                         theirs = part_of(whole, there, count, 0, width);
        arrived ? backend_.copy(ours, theirs) : backend_.copy(theirs, ours);
      });
  };
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), block * wire.per_element);
  if (!to_sequences)
    reorder(false);
  else if (comm.collective == Collective::all_to_all)
    for (std::int64_t r = 0; r < n; ++r) backend_.copy(columns(r), staged(false, r * block, rows, width));
  else
    backend_.copy(columns(0), staged(false, 0, rows, width));
  after_compute(group, backend_);
  std::byte *const out = staged(false, 0, 0, 0).data, *const in = staged(true, 0, 0, 0).data;
  switch (comm.collective) {
    case Collective::all_to_all:
      group.all_to_all(out, counts, in, counts, wire.dtype);
      break;
    case Collective::all_gather:
      group.all_gather(out, in, counts.front(), wire.dtype);
      break;
    case Collective::reduce_scatter:
      group.reduce_scatter(out, in, block, from.dtype);
      break;
    default:
      throw std::logic_error("a context exchange that is not run");
  }
  before_compute(group, backend_);
  if (to_sequences)
    reorder(true);
  else if (comm.collective == Collective::all_to_all)
    for (std::int64_t r = 0; r < n; ++r) backend_.copy(staged(true, r * block, rows, width), columns(r));
  else
    backend_.copy(staged(true, 0, rows, width), columns(0));
}

}  // namespace moeplan
