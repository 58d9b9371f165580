#pragma once
/// Training steps of a plan as one of its ranks: forward and backward of every micro-batch, gradient norm and clipping,
/// AdamW under a learning-rate schedule. What is said of a step (loss, norm, counts) is of all ranks and the same on
/// each. Deterministic: the same plan, seed, weights and data give the same bits.

#include <optional>

#include "executor/ranks/moves.hpp"

#include "executor/walk/walk.hpp"

namespace moeplan {

struct TrainOptions {
  std::int64_t steps = 10;  ///< of the schedule; training may stop earlier and be resumed
  std::uint64_t seed = 1;
  double learning_rate = 1e-4, final_share = 0.1;  ///< peak; at the end of the cosine, as a share of it
  std::int64_t warmup = 0;                         ///< steps of linear rise
  double clip = 1;                                 ///< of the gradient norm; 0: none
  double weight_decay = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  WalkOptions walk{};
};

/// Learning rate of step n, counted from 1: linear rise over `warmup` steps, then a half cosine down to `final_share`
/// of the peak.
[[nodiscard]] double learning_rate(const TrainOptions& options, std::int64_t step);

struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0, gradient_norm = 0, learning_rate = 0, seconds = 0;
  std::int64_t tokens = 0, labelled = 0;
  std::vector<RoutingReport> routing;  ///< by layer, summed over the micro-batches (balance: mean)
  double drop_rate = 0, max_over_mean = 0, balance = 0;
  double rank_max_over_mean = 0;  ///< rows of the busiest expert rank over the mean, of the worst layer, as experts lay
                                  ///< in this step; 0 without expert ranks
  std::int64_t moved_bytes = 0;   ///< over all ranks: of experts that lie elsewhere from the next step on
  bool applied = true;            ///< false: loss or norm was not finite, and the step was skipped
  std::string fault{};  ///< then, of several ranks: which was at fault, as far as can be told
};

class Trainer {
 public:
  /// `world` is null for a plan of one rank; otherwise all its ranks construct theirs together. Refuses what cannot
  /// run, with the reason.
  Trainer(const Problem& problem, const Plan& plan, Backend& backend, const TrainOptions& options,
          Communicator* world = nullptr, Progress* progress = nullptr);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One step over as many batches as the plan has micro-batches: this rank's share of the step's data.
  /// Context ranks are given whole sequences and take their tokens.
  StepReport step(const std::vector<Batch>& batches);
  float evaluate(const Batch& batch) { return walk_->evaluate(batch); }
  /// Gradients of one micro-batch, left in the parameters; returns the loss.
  float differentiate(const Batch& batch);

  [[nodiscard]] std::int64_t steps_done() const { return done_; }
  void set_steps_done(std::int64_t n) { done_ = n; }
  [[nodiscard]] Parameters& parameters() { return *parameters_; }
  [[nodiscard]] Backend& backend() { return backend_; }
  [[nodiscard]] Walk& walk() { return *walk_; }
  [[nodiscard]] const Program& program() const { return program_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  /// Where the experts are, and what was counted since: what a resumed run needs to place them at the same steps in the
  /// same way. Empty where experts keep their order.
  [[nodiscard]] std::vector<std::int64_t> placement() const;
  /// Moves the experts to where `placement()` of a run with as many expert ranks had them; false, and nothing done, if
  /// it does not fit. All ranks call it with the same words.
  bool place(std::span<const std::int64_t> words);
  [[nodiscard]] RankGroups* ranks() { return ranks_ ? &*ranks_ : nullptr; }
  /// Memory held, by category; `at_peak` of the arena's activations. Where a driver says what is taken of the device,
  /// the sum is its figure at the worst moment: what nobody here allocated is the run time's context.
  [[nodiscard]] MemoryBreakdown memory() const;

 private:
  /// Elements [first, first + count) of a run: as many as one call of the optimizer takes.
  struct Piece {
    std::size_t run = 0;
    std::int64_t first = 0, count = 0;
  };
  void place_window();
  void update_elements(const Piece& piece, const TensorView& m, const TensorView& v);
  void update_through_window();
  [[nodiscard]] TensorView piece_view(const Piece& piece, const Backend::Memory& memory, DType type) const;
  [[nodiscard]] std::vector<Batch> own_tokens(const std::vector<Batch>& batches) const;
  void zero_gradients();
  double squared_gradients();
  void reduce_report(StepReport& report, double& squares);
  void tell(const char* phase);
  void update(double rate, double clipping);
  void rebalance(StepReport& report);

  const Problem& problem_;
  const Plan& plan_;
  Backend& backend_;
  TrainOptions options_;
  Program program_;
  Progress* progress_ = nullptr;
  std::optional<RankGroups> ranks_;
  std::optional<Parameters> parameters_;
  std::optional<Walk> walk_;
  MovingRoom moving_;
  ExpertCounts counted_;     ///< since experts were last placed
  Backend::Memory scratch_;  ///< step size, sums of squares, written weights of a piece
  Bytes scratch_bytes_{};
  std::vector<Piece> pieces_;
  std::vector<Piece> windows_;  ///< moments in host memory: what passes through the device together
  Backend::Memory window_;      ///< of two of them
  Bytes window_bytes_{};
  Bytes device_peak_{};  ///< what the driver said was taken when most was
  std::int64_t done_ = 0;
};

}  // namespace moeplan
