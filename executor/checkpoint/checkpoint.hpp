#pragma once
/// Saves of a training run. `DIR/step-N` holds `state.safetensors` (trained weights, moments, router biases) and `manifest.json`, written
/// last; it appears by one rename, after everything is on the disk. Loading takes the newest that verifies. A resumed run continues bit for
/// bit: what is saved is all that a step reads.

#include <functional>
#include <optional>

#include "executor/data/packer.hpp"
#include "executor/state/parameters.hpp"

namespace moeplan {

struct TrainingProgress {
  std::int64_t step = 0;
  DataPosition data;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> placement{};   ///< of the experts (Trainer::placement); empty where they keep their order
};

/// What must be equal for a resume to mean the same run: model, workload, plan.
[[nodiscard]] std::string run_fingerprint(const Problem& problem, const Plan& plan);

struct Saved {
  std::filesystem::path directory;
  std::int64_t bytes = 0;
};
/// Keeps the newest `keep` (at least 2) saves. `told` hears of work done, here and below, at least every 64 MiB.
Saved save_checkpoint(const std::filesystem::path& directory, const std::string& fingerprint, const TrainingProgress& progress, const Parameters& parameters, Backend& backend, std::size_t keep = 2, const std::function<void()>& told = {});

struct Resumed {
  TrainingProgress progress;
  std::filesystem::path directory;
  std::vector<std::string> notes;    ///< saves that were broken and set aside
};
/// Nothing if there is no save. Throws InputError if the newest good one is of another run, listing up to ten tensors that differ.
[[nodiscard]] std::optional<Resumed> load_checkpoint(const std::filesystem::path& directory, const std::string& fingerprint, Parameters& parameters, Backend& backend, const std::function<void()>& told = {});

}  // namespace moeplan
