#pragma once
/// Measured training runs as files hold them: what was run, where it was read, and what it took. One row may say much
/// or little; what is missing is absent here, and what cannot be understood becomes a reason, never a guess.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/fields.hpp"
#include "core/json.hpp"

namespace moeplan::validation {

/// What a run took. At least one is there in a row worth scoring.
struct Measurements {
  std::optional<double> step_time_s, tokens_per_s_per_gpu, tflops_per_gpu, mfu, peak_memory_gib_per_gpu, gpu_hours;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("step_time_s", &Measurements::step_time_s).above(0).at_most(1e7),
        field("tokens_per_s_per_gpu", &Measurements::tokens_per_s_per_gpu).above(0).at_most(1e9),
        field("tflops_per_gpu", &Measurements::tflops_per_gpu).above(0).at_most(1e6),
        field("mfu", &Measurements::mfu).above(0).at_most(2),
        field("peak_memory_gib_per_gpu", &Measurements::peak_memory_gib_per_gpu).above(0).at_most(1e5),
        field("gpu_hours", &Measurements::gpu_hours).above(0).at_most(1e12));
  }
};

/// One run.
struct Row {
  std::string id, framework, model;
  std::optional<std::string> source_title, source, framework_version, hardware, interconnect, model_kind, method,
      precision, sharding, recompute, offload, lora_targets, optimizer, moe_notes, flops_convention, notes, confidence;
  std::optional<std::int64_t> year, gpus, gpus_per_node, sequence, global_batch, micro_batch, tp, pp, vpp, cp, ep, etp,
      lora_rank, document,  ///< document: mean tokens of those packed into a sequence, where attention stays within each
      mtp_depth;            ///< times that multi-token prediction's layers run
  std::optional<bool> sequence_parallel;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("id", &Row::id).required(), field("framework", &Row::framework).required(),
        field("model", &Row::model).required(), field("source_title", &Row::source_title),
        field("source_url_or_repo_path", &Row::source), field("framework_version", &Row::framework_version),
        field("hardware", &Row::hardware), field("interconnect", &Row::interconnect),
        field("model_kind", &Row::model_kind), field("method", &Row::method), field("precision", &Row::precision),
        field("dp_or_fsdp", &Row::sharding), field("recompute", &Row::recompute), field("offload", &Row::offload),
        field("lora_targets", &Row::lora_targets), field("optimizer", &Row::optimizer),
        field("moe_notes", &Row::moe_notes), field("flops_convention", &Row::flops_convention),
        field("notes", &Row::notes), field("confidence", &Row::confidence), field("year", &Row::year),
        field("num_gpus", &Row::gpus).between(1, 1 << 20), field("gpus_per_node", &Row::gpus_per_node).between(1, 1024),
        field("seq_len", &Row::sequence).between(1, 1 << 24),
        field("global_batch_size", &Row::global_batch).between(1, 1 << 24),
        field("micro_batch_size", &Row::micro_batch).between(1, 1 << 20), field("tp", &Row::tp).between(1, 1 << 20),
        field("pp", &Row::pp).between(1, 1 << 20), field("vpp", &Row::vpp).between(1, 1 << 20),
        field("cp", &Row::cp).between(1, 1 << 20), field("ep", &Row::ep).between(1, 1 << 20),
        field("etp", &Row::etp).between(1, 1 << 20), field("lora_rank", &Row::lora_rank).between(0, 65536),
        field("document_tokens", &Row::document).between(1, 1 << 24), field("mtp_depth", &Row::mtp_depth).between(0, 64),
        field("sequence_parallel", &Row::sequence_parallel));
  }
  Measurements measured;
  double memory_unit = 1;  ///< GiB in what the source prints as one
  std::optional<double> peak_reserved_gib;  ///< where a source gives both kinds of peak
  bool failed = false;  ///< the run did not finish (out of memory): checks that the plan is called infeasible
};

/// Dimensions of a model, as printed or read off its configuration.
struct ModelDims {
  std::optional<std::int64_t> hidden, layers, heads, kv_heads, head_dim, ffn, vocab, experts, topk, moe_ffn,
      shared_expert_ffn, first_dense_layers, mtp_layers;
  std::optional<bool> glu;
  std::optional<std::string> library_model, source, kind;
  std::optional<double> params_billion;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("hidden", &ModelDims::hidden).between(1, 1 << 20), field("layers", &ModelDims::layers).between(1, 10000),
        field("heads", &ModelDims::heads).between(1, 1 << 16),
        field("kv_heads", &ModelDims::kv_heads).between(1, 1 << 16),
        field("head_dim", &ModelDims::head_dim).between(1, 1 << 14), field("ffn", &ModelDims::ffn).between(1, 1 << 22),
        field("vocab", &ModelDims::vocab).between(1, 1 << 24),
        field("experts", &ModelDims::experts).between(1, 1 << 16), field("topk", &ModelDims::topk).between(1, 1 << 12),
        field("moe_ffn", &ModelDims::moe_ffn).between(1, 1 << 22),
        field("shared_expert_ffn", &ModelDims::shared_expert_ffn).between(0, 1 << 22),
        field("first_dense_layers", &ModelDims::first_dense_layers).between(0, 10000),
        field("mtp_layers", &ModelDims::mtp_layers).between(0, 64), field("glu", &ModelDims::glu),
        field("library_model", &ModelDims::library_model), field("source", &ModelDims::source),
        field("kind", &ModelDims::kind), field("params_billion_computed_main", &ModelDims::params_billion));
  }
  Json extra;  ///< whatever else the source names (latent ranks, tied embeddings), an object or null
};

/// Takes from `other` what `into` leaves out; nothing where the two are different models (hidden size or layers), and no configuration's name where `into`
/// has dimensions of its own.
void fill_in(ModelDims& into, const ModelDims& other);

struct Skipped {
  std::string id, reason;
  bool complete = false;  ///< it has every required field and is of confidence high: not scoring it is our lack
};

struct Rows {
  std::vector<Row> rows;
  std::vector<Skipped> skipped;             ///< rows that are not even rows
  std::map<std::string, ModelDims> models;  ///< of a models file beside them
};

/// Rows of a file, or of every .json file of a directory, in name order. A file is a list of rows, or {"common": {...},
/// "rows": [...]} where each row adds to what is common. Dimensions come from a file whose name holds "models" beside
/// them, or are left empty. Throws InputError for what is not readable as such; a single bad row is skipped with its
/// reason.
[[nodiscard]] Rows read_rows(const std::filesystem::path& file_or_directory);

/// Same from a parsed document. `where` names it in messages.
void read_rows(const Json& document, const std::string& where, Rows& into);
[[nodiscard]] std::map<std::string, ModelDims> read_models(const Json& document, const std::string& where);

}  // namespace moeplan::validation
