#pragma once
/// How the words of measured rows are understood: which runtime a framework is, which device a hardware name means,
/// which wire an interconnect is. Data (configs/measured/words.json), each entry with its source; the first entry whose
/// text a row contains speaks.

#include <filesystem>

#include "core/spec/cluster.hpp"

namespace moeplan::validation {

/// Which of the three peaks a source prints.
enum class PeakKind : std::uint8_t {
  allocated,  ///< bytes handed out by the framework's allocator
  reserved,   ///< bytes that allocator holds
  device,     ///< what the driver reports: reserved, context and communicators
};

/// How data-parallel ranks hold the weights.
enum class Sharding : std::uint8_t { replicated, optimizer, full };

struct FrameworkWords {
  std::string contains;  ///< in the row's framework, source title or id
  std::string runtime;   ///< name in configs/runtimes
  PeakKind peak = PeakKind::reserved;
  Sharding sharding = Sharding::full;  ///< where the row does not say
  std::string source;
  std::optional<std::string> profile;  ///< measured on the very machines of the source; otherwise the hardware's
  static constexpr auto fields();
};

struct HardwareWords {
  std::string contains;  ///< words of a device's name, each of them (names_device)
  std::string device, source;
  std::optional<std::string> profile;
  double sustained = 1;  ///< clock held under continuous load over the boost clock
  static constexpr auto fields();
};

/// Utilisation of the dense bf16 peak that a framework's attention kernels reach, causal products counted half.
struct AttentionWords {
  std::string contains, generation, source;
  double forward = 0, backward = 0;
  static constexpr auto fields();
};

/// How much of what they reach at 8,192 tokens attention kernels reach in shorter and longer sequences.
struct ReachWords {
  std::string source;
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<double> forward, backward;
  static constexpr auto fields();
};

/// Central 90 % of measured over predicted, by what is predicted and for which kind of case.
struct BandWords {
  std::string quantity, kind;
  double low = 1, high = 1;
  static constexpr auto fields();
};

struct NetworkWords {
  std::string contains;  ///< in the row's interconnect, id or source title
  LinkTier tier;         ///< takes the place of the device's tier of the same kind
  static constexpr auto fields();
};

/// What is known of all rows of a source.
struct SourceWords {
  std::string contains;                 ///< in the row's framework, source title, id or notes
  std::optional<std::string> hardware, model;  ///< of its rows of this device, of models so named alone
  bool fine_tuning = false;             ///< of its rows that do not train from scratch alone
  std::optional<std::string> framework_version, device, remark;  ///< remark: added to its notes
  std::optional<std::int64_t> document, mtp_depth;  ///< as in a row (rows.hpp)
  double memory_unit = 1;                ///< GiB in what it prints as one
  std::string source;
  static constexpr auto fields();
};

/// What is known of models by their names, where their dimensions leave it out.
struct ModelWords {
  std::string contains, source;
  std::optional<std::int64_t> vocab;
  std::optional<std::string> positions, activation;
  std::optional<bool> no_bias, tied_embeddings;
  static constexpr auto fields();
};

struct Words {
  std::vector<SourceWords> sources;
  std::vector<ModelWords> models;
  std::vector<FrameworkWords> frameworks;
  std::vector<HardwareWords> hardware;
  std::vector<NetworkWords> networks;
  std::vector<AttentionWords> attention;
  ReachWords attention_reach;
  std::vector<BandWords> bands;
  static constexpr auto fields();
};

constexpr auto FrameworkWords::fields() {
  return std::make_tuple(
      field("contains", &FrameworkWords::contains).required(), field("runtime", &FrameworkWords::runtime).required(),
      field("peak", &FrameworkWords::peak), field("sharding", &FrameworkWords::sharding),
      field("source", &FrameworkWords::source).required(), field("profile", &FrameworkWords::profile));
}
constexpr auto HardwareWords::fields() {
  return std::make_tuple(field("contains", &HardwareWords::contains).required(),
                         field("device", &HardwareWords::device).required(), field("profile", &HardwareWords::profile),
                         field("sustained", &HardwareWords::sustained).above(0).at_most(1),
                         field("source", &HardwareWords::source).required());
}
constexpr auto AttentionWords::fields() {
  return std::make_tuple(field("contains", &AttentionWords::contains).required(),
                         field("generation", &AttentionWords::generation).required(),
                         field("forward", &AttentionWords::forward).required().above(0).at_most(1),
                         field("backward", &AttentionWords::backward).required().above(0).at_most(1),
                         field("source", &AttentionWords::source).required());
}
constexpr auto ReachWords::fields() {
  return std::make_tuple(field("lengths", &ReachWords::lengths).required(),
                         field("forward", &ReachWords::forward).required().above(0).at_most(2),
                         field("backward", &ReachWords::backward).required().above(0).at_most(2),
                         field("source", &ReachWords::source).required());
}
constexpr auto BandWords::fields() {
  return std::make_tuple(field("quantity", &BandWords::quantity).required(), field("kind", &BandWords::kind).required(),
                         field("low", &BandWords::low).required().above(0).at_most(100),
                         field("high", &BandWords::high).required().above(0).at_most(100));
}
constexpr auto NetworkWords::fields() {
  return std::make_tuple(field("contains", &NetworkWords::contains).required(),
                         field("tier", &NetworkWords::tier).required());
}
constexpr auto SourceWords::fields() {
  return std::make_tuple(
      field("contains", &SourceWords::contains).required(), field("hardware", &SourceWords::hardware),
      field("model", &SourceWords::model), field("mtp_depth", &SourceWords::mtp_depth).between(0, 64),
      field("fine_tuning", &SourceWords::fine_tuning), field("framework_version", &SourceWords::framework_version),
      field("device", &SourceWords::device), field("remark", &SourceWords::remark),
      field("document_tokens", &SourceWords::document).between(1, 1 << 24),
      field("memory_unit", &SourceWords::memory_unit).above(0).at_most(2),
      field("source", &SourceWords::source).required());
}
constexpr auto ModelWords::fields() {
  return std::make_tuple(
      field("contains", &ModelWords::contains).required(), field("vocab", &ModelWords::vocab).between(1, 1 << 24),
      field("positions", &ModelWords::positions), field("activation", &ModelWords::activation),
      field("no_bias", &ModelWords::no_bias), field("tied_embeddings", &ModelWords::tied_embeddings),
      field("source", &ModelWords::source).required());
}
constexpr auto Words::fields() {
  return std::make_tuple(field("sources", &Words::sources), field("models", &Words::models),
                         field("frameworks", &Words::frameworks).required(),
                         field("hardware", &Words::hardware).required(), field("networks", &Words::networks).required(),
                         field("attention", &Words::attention),
                         field("attention_reach", &Words::attention_reach), field("bands", &Words::bands));
}

/// Reads configs/measured/words.json. Throws InputError.
[[nodiscard]] Words load_words(const std::filesystem::path& configs);

/// Of a curve over lengths, its value at one: straight lines between them, in proportion below the first (a kernel's
/// time has a floor), the last beyond.
[[nodiscard]] double reach_at(const std::vector<std::int64_t>& lengths, const std::vector<double>& values,
                              std::int64_t length);

/// Whether `text` holds `part`, whatever the case of letters.
[[nodiscard]] bool contains(const std::string& text, const std::string& part);

}  // namespace moeplan::validation

namespace moeplan {
template <>
struct EnumNames<validation::PeakKind> {
  static constexpr std::array names{std::pair{validation::PeakKind::allocated, std::string_view("allocated")},
                                    std::pair{validation::PeakKind::reserved, std::string_view("reserved")},
                                    std::pair{validation::PeakKind::device, std::string_view("device")}};
};
template <>
struct EnumNames<validation::Sharding> {
  static constexpr std::array names{std::pair{validation::Sharding::replicated, std::string_view("replicated")},
                                    std::pair{validation::Sharding::optimizer, std::string_view("optimizer")},
                                    std::pair{validation::Sharding::full, std::string_view("full")}};
};
}  // namespace moeplan
