#pragma once
/// A problem from names, files and overriding flags, its parts checked against each other. Every refusal is one InputError line.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"

namespace moeplan {

/// What the user said. Names are looked up in configs/, anything else is a file; absent parts take the defaults.
struct ProblemRequest {
  std::string model;
  std::optional<std::string> cluster, device;
  std::optional<std::int64_t> gpus;               ///< with `device`: whole machines or a part of one; with `cluster`: its size
  std::string workload = "lora-sft";
  std::string load = "log-normal-v3";
  std::string runtime = "moeplan";
  std::optional<std::string> profile;             ///< by default the one measured on this device's generation, else on H200

  std::optional<std::int64_t> sequence_length, global_batch, rank;
  std::optional<double> tokens;
  std::optional<Training> method;                 ///< `lora` or `full`
  std::vector<std::string> targets;               ///< weight classes that `method` trains; all others are frozen
  std::optional<OptimizerKind> optimizer;
  std::optional<DType> frozen_storage;
};

/// The configuration of a model: file, directory holding config.json, or name in configs/models.
struct ModelFile {
  Json config;
  std::filesystem::path path;
  std::string name;
};
[[nodiscard]] ModelFile load_model_config(const std::filesystem::path& configs, const std::string& name_or_path);

/// Throws InputError for anything missing, unreadable, out of range or inconsistent. `like`: of a request that named no profile either; where device and
/// runtime are the same its samples are taken instead of being read again (thousands of them, a good part of the time).
[[nodiscard]] Problem make_problem(const std::filesystem::path& configs, const ProblemRequest& request, const Problem* like = nullptr);

/// The parts checked against each other: tuned classes that the model lacks, load traces of another width, storage that
/// the runtime does not run, sequences longer than learned positions.
void check(const Problem& problem);

/// Refuses micro-batches of more than 2^32 tokens: byte counts of their tensors would not fit 63 bits.
void check_micro_batch(const Problem& problem, std::int64_t micro_batch, const std::string& where);

}  // namespace moeplan
