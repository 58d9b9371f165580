#pragma once
/// Tokenised documents: JSONL with `input_ids` (and `labels`), a Megatron `.bin`/`.idx` pair, or made-up ones.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace moeplan {

/// Tokens and, at the same places, what to learn (-100: nothing); the model predicts the next token.
struct Document {
  std::vector<std::int32_t> tokens, labels;
};

/// Documents by number. Reading one throws InputError that names file, line or document, and the number that is wrong.
struct Dataset {
  std::string where;
  std::int64_t documents = 0;
  std::function<Document(std::int64_t)> read;
};

/// By what the file is: "x.jsonl", "x.bin" or "x.idx" (its partner beside it), "synthetic", or "random". `vocabulary` bounds the ids; `length`
/// is a sequence's.
[[nodiscard]] Dataset open_dataset(const std::string& path, std::int64_t vocabulary, std::uint64_t seed, std::int64_t length = 4096);

[[nodiscard]] Dataset jsonl_dataset(const std::filesystem::path& file, std::int64_t vocabulary);
[[nodiscard]] Dataset megatron_dataset(const std::filesystem::path& prefix, std::int64_t vocabulary);
/// Runs that repeat with a period of a few tokens, so that there is something to learn.
[[nodiscard]] Dataset synthetic_dataset(std::int64_t vocabulary, std::uint64_t seed);
/// Uniform over the vocabulary, each document as long as a sequence: the work that a plan is priced for, with nothing to learn.
[[nodiscard]] Dataset random_dataset(std::int64_t vocabulary, std::uint64_t seed, std::int64_t length);

}  // namespace moeplan
