#pragma once
/// Real text for the executor's tests: the first chapters of Genesis, a token a byte (tests/data/text).

#include "core/json.hpp"
#include "tests/executor/run/tiny.hpp"

namespace moeplan::test {

/// A model of bytes.
inline ModelSpec of_bytes(ModelSpec m) {
  m.vocabulary = 128;
  return m;
}

/// Micro-batch number n of the text, sequences one after the other, from the start again behind its end.
class Text {
 public:
  Text() : text_(read_text_file(source + "/tests/data/text/genesis.txt", 1 << 20)) {}
  [[nodiscard]] Batch batch(const Problem& p, const Plan& q, std::int64_t n) const {
    const std::int64_t length = p.workload.sequence_length,
                       sequences = static_cast<std::int64_t>(text_.size()) / (length + 1);
    Batch b;
    for (std::int64_t s = 0; s < q.micro_batch; ++s) {
      const std::int64_t first = (n * q.micro_batch + s) % sequences * (length + 1);
      for (std::int64_t t = first; t < first + length; ++t) {
        b.tokens.push_back(text_[static_cast<std::size_t>(t)]);
        b.labels.push_back(text_[static_cast<std::size_t>(t + 1)]);
      }
    }
    return b;
  }

 private:
  std::string text_;
};

/// Losses of `steps` steps over the text.
inline std::vector<double> losses_over_text(TinyRun& run, int steps) {
  const Text text;
  std::vector<double> out;
  for (int s = 0; s < steps; ++s) out.push_back(run.trainer->step({text.batch(run.problem, run.plan, s)}).loss);
  return out;
}

inline double mean(const std::vector<double>& v, std::size_t first, std::size_t count) {
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) sum += v[i] / static_cast<double>(count);
  return sum;
}

}  // namespace moeplan::test
