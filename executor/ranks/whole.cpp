#include "executor/ranks/whole.hpp"

#include <bit>

namespace moeplan {

std::vector<float> whole_values(const Parameter& p, const Backend::Memory& memory, DType type, RankGroups* ranks,
                                Backend& backend) {
  std::vector<float> mine(static_cast<std::size_t>(p.held_shape().elements()));
  backend.wait();
  backend.read({memory.get(), type, p.held_shape()}, mine);
  if (!ranks) return mine;
  std::vector<float> whole(static_cast<std::size_t>(p.whole.elements()));
  // Two floats to a word: this goes by way of the host, as files do.
  std::vector<std::int64_t> words((mine.size() + 1) / 2, 0);
  for (std::size_t i = 0; i < mine.size(); ++i)
    words[i / 2] |=
        static_cast<std::int64_t>(static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(mine[i])) << (i % 2 * 32));
  const std::vector<std::int64_t> all = ranks->stage().gather_words(words);
  for (int r = 0; r < ranks->stage().size(); ++r) {
    const RankPlace place{ranks->stage().world_ranks()[static_cast<std::size_t>(r)], ranks->place().parallelism};
    for (const ElementRun& run : held_runs(p.cut(), place))
      for (std::int64_t i = 0; i < run.count; ++i) {
        const std::size_t at = static_cast<std::size_t>(r) * words.size() * 2 + static_cast<std::size_t>(run.here + i);
        whole[static_cast<std::size_t>(run.at + i)] =
            std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(all[at / 2]) >> (at % 2 * 32)));
      }
  }
  return whole;
}

}  // namespace moeplan
