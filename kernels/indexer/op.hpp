#pragma once
/// DSA's lightning indexer with its selection: I_ts = sum_h w_th relu(q_th . k_s) over the visible keys, the top-k of each row,
/// ascending by key index, -1 where fewer are visible; ties go to the lower index. No sequence x sequence buffer.
/// With `key_ratio` > 1 there is one key for that many tokens (DeepSeek-V4's compressed keys, GLM-5.3's pooled ones, MiniMax-M3's
/// blocks). The selection has no gradient: the indexer's inputs are detached, as in the published training.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Indexer {
  static constexpr std::string_view kind = "indexer";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0, dim = 0;
  std::int64_t topk = 0;
  std::int64_t key_ratio = 1;          ///< tokens per key
  std::int64_t kv_tokens = 0;          ///< tokens the keys come from, if more than queries (context parallelism); 0: as many
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Indexer::tokens, "queries").at_least(0), field("sequence_length", &Indexer::sequence_length).above(0),
                           field("heads", &Indexer::heads, "index heads").above(0), field("dim", &Indexer::dim, "width of an index head").above(0),
                           field("topk", &Indexer::topk, "keys kept of each row").above(0), field("key_ratio", &Indexer::key_ratio, "tokens per key").above(0),
                           field("kv_tokens", &Indexer::kv_tokens, "tokens behind the keys; 0: as many as queries").at_least(0),
                           field("packed_sequences", &Indexer::packed_sequences, "0: equal lengths").at_least(0));
  }

  [[nodiscard]] std::int64_t keys() const { return ((kv_tokens ? kv_tokens : tokens) + key_ratio - 1) / key_ratio; }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"q", Role::index, {tokens, heads * dim}});
    o.push_back({"k", Role::index, {keys(), dim}});
    o.push_back({"head_weights", Role::index, {tokens, heads}});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i32});
    o.push_back({"indices", Role::aux, {tokens, topk}, DType::i32});
    return o;
  }

  /// 2 dim operations for each head and visible key, and 3 to weigh and sum; the selection compares, it does not multiply.
  [[nodiscard]] Flops flops(Pass pass, Wants) const {
    if (pass == Pass::backward) return {0};
    return {num(tokens) * num(heads) * visible_keys(sequence_length) / num(key_ratio) * (2 * num(dim) + 3)};
  }

  /// Survivors of the running threshold, twice top-k a row (score and index), for the rows in flight: at most 64 MiB.
  [[nodiscard]] Bytes workspace(Pass pass, Wants) const {
    if (pass == Pass::backward) return {0};
    return {std::min<std::int64_t>(tokens * 2 * topk * 8, std::int64_t{64} << 20)};
  }

  static std::vector<Indexer> cases() {
    return {{.tokens = 12, .sequence_length = 6, .heads = 2, .dim = 8, .topk = 3}, {.tokens = 9, .sequence_length = 9, .heads = 1, .dim = 4, .topk = 16},
            {.tokens = 10, .sequence_length = 10, .heads = 3, .dim = 4, .topk = 2, .key_ratio = 4},
            {.tokens = 0, .sequence_length = 4, .heads = 1, .dim = 4, .topk = 2}};
  }

  bool operator==(const Indexer&) const = default;
};

}  // namespace moeplan::op
