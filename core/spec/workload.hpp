#pragma once
/// What is trained, on what, and how: lengths, batch, tuning and storage per weight class, optimizer.

#include <optional>
#include <string>

#include "core/dtype.hpp"
#include "core/fields.hpp"
#include "core/spec/training.hpp"

namespace moeplan {

enum class WeightClass : std::uint8_t { attention, dense, shared, experts, router, embedding, head, norm, latent, vision, mtp, other };
template <>
struct EnumNames<WeightClass> {
  static constexpr std::array names{
      std::pair{WeightClass::attention, std::string_view("attention")}, std::pair{WeightClass::dense, std::string_view("dense")},
      std::pair{WeightClass::shared, std::string_view("shared")}, std::pair{WeightClass::experts, std::string_view("experts")},
      std::pair{WeightClass::router, std::string_view("router")}, std::pair{WeightClass::embedding, std::string_view("embedding")},
      std::pair{WeightClass::head, std::string_view("head")}, std::pair{WeightClass::norm, std::string_view("norm")},
      std::pair{WeightClass::latent, std::string_view("latent")}, std::pair{WeightClass::vision, std::string_view("vision")},
      std::pair{WeightClass::mtp, std::string_view("mtp")}, std::pair{WeightClass::other, std::string_view("other")}};
};

/// How one weight class is trained. `lora`: frozen, with a pair of this rank and alpha.
struct Tuning {
  Training training = Training::frozen;
  std::int64_t rank = 0;
  double alpha = 0;
  bool shared_adapter = false;  ///< experts: one pair for all experts of a layer, not one each
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("training", &Tuning::training, "frozen, full or lora").required(),
                           field("rank", &Tuning::rank, "LoRA rank").between(0, 4096), field("alpha", &Tuning::alpha, "LoRA alpha").between(0, 65536),
                           field("shared_adapter", &Tuning::shared_adapter, "experts: one pair for all experts of a layer"));
  }
  bool operator==(const Tuning&) const = default;
};

enum class OptimizerKind : std::uint8_t { adamw, adamw8bit, muon };
template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array names{std::pair{OptimizerKind::adamw, std::string_view("adamw")},
                                    std::pair{OptimizerKind::adamw8bit, std::string_view("adamw8bit")},
                                    std::pair{OptimizerKind::muon, std::string_view("muon")}};
};

struct Workload {
  std::string name = "custom";
  std::string source;
  std::int64_t sequence_length = 4096;             ///< tokens
  std::optional<std::int64_t> global_batch;        ///< sequences per step; by default 8 micro-batches per data rank
  std::optional<double> tokens;                    ///< to train on in all, for GPU-hours and money
  Tuning attention{Training::lora, 64, 128}, dense{Training::lora, 64, 128}, shared{}, experts{}, router{}, embedding{}, head{}, norm{}, other{};
  std::optional<DType> frozen_storage;             ///< of frozen linear weights in memory; by default searched among what the checkpoint and the runtime allow
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool operator==(const Workload&) const = default;

  [[nodiscard]] const Tuning& tuning(WeightClass cls) const {
    switch (cls) {
      case WeightClass::attention: return attention;
      case WeightClass::dense: return dense;
      case WeightClass::shared: return shared;
      case WeightClass::experts: return experts;
      case WeightClass::router: return router;
      case WeightClass::embedding: return embedding;
      case WeightClass::head: return head;
      case WeightClass::norm: return norm;
      case WeightClass::vision: case WeightClass::mtp: { static constexpr Tuning frozen{}; return frozen; }
      case WeightClass::latent: case WeightClass::other: return other;
    }
    return other;
  }

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("name", &Workload::name), field("source", &Workload::source, "where these settings come from"),
        field("sequence_length", &Workload::sequence_length, "tokens per sequence").required().between(1, 1 << 24),
        field("global_batch", &Workload::global_batch, "sequences per step").between(1, 1 << 24),
        field("tokens", &Workload::tokens, "tokens to train on").above(0).at_most(1e18),
        field("attention", &Workload::attention), field("dense", &Workload::dense), field("shared", &Workload::shared),
        field("experts", &Workload::experts), field("router", &Workload::router), field("embedding", &Workload::embedding),
        field("head", &Workload::head), field("norm", &Workload::norm), field("other", &Workload::other, "latent projections, residual mixers"),
        field("frozen_storage", &Workload::frozen_storage, "bf16, fp8, int4, nf4, mxfp4"), field("optimizer", &Workload::optimizer));
  }
};

}  // namespace moeplan
