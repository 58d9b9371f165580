#include "executor/train/finite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "executor/backend/convert.hpp"
#include "executor/rendezvous/join.hpp"
#include "executor/rendezvous/rank_process.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 24;  ///< elements of one call

struct Named {
  const Backend::Memory* memory;
  DType held;
  std::int64_t elements;
  std::string name;
};

std::vector<Named> tensors_of(const Parameters& parameters, bool frozen) {
  std::vector<Named> out;
  for (const Parameter& p : parameters.all()) {
    const std::int64_t n = p.held_shape().elements();
    if (p.held != DType::f32 && p.held != DType::bf16) continue;
    if (p.trained || frozen) out.push_back({&p.value, p.held, n, p.name});
    if (!p.trained) continue;
    out.push_back({&p.first_moment, DType::f32, n, "first moment of " + p.name});
    out.push_back({&p.second_moment, DType::f32, n, "second moment of " + p.name});
  }
  return out;
}

constexpr std::size_t kHostWords = 8;
using HostName = std::array<char, 8 * kHostWords>;

[[noreturn]] void blame(int rank, const std::string& tensor, const std::string& when) {
  throw RankBlamed(
      rank, fmt::format("{} is not finite {}; the last save that verifies is the place to go on from", tensor, when));
}

}  // namespace

std::optional<std::string> first_not_finite(Parameters& parameters, Backend& backend, bool frozen) {
  if (backend.name() == "null") return std::nullopt;
  const std::vector<Named> tensors = tensors_of(parameters, frozen);
  std::vector<std::size_t> of;  // a sum's tensor
  for (std::size_t t = 0; t < tensors.size(); ++t)
    for (std::int64_t at = 0; at < tensors[t].elements; at += kMost) of.push_back(t);
  if (of.empty()) return std::nullopt;
  const auto count = static_cast<std::int64_t>(of.size());
  const Backend::Memory memory = backend.allocate({4 * count}, "sums of squares");
  std::size_t next = 0;
  for (const Named& t : tensors)
    for (std::int64_t at = 0; at < t.elements; at += kMost, ++next) {
      const std::int64_t n = std::min(kMost, t.elements - at);
      const TensorView values{t.memory->get() + at * plain_bytes(t.held), t.held, {n}},
          sum{memory.get() + 4 * next, DType::f32, {1}};
      backend.call({op::GradNorm{.elements = n, .gradient = t.held}, Pass::forward, {}}, std::array{values, sum},
                   std::array<TensorView, 2>{}, {});
    }
  backend.wait();
  std::vector<float> squares(of.size());
  backend.read({memory.get(), DType::f32, {count}}, squares);
  for (std::size_t i = 0; i < squares.size(); ++i)
    if (!std::isfinite(squares[i])) return tensors[of[i]].name;
  return std::nullopt;
}

std::string agree_on_fault(Communicator& world, const StepFault& mine) {
  HostName host{};
  const std::string own = own_host_name();
  std::copy_n(own.begin(), std::min(own.size(), host.size() - 1), host.begin());
  std::vector<std::int64_t> words(1 + kHostWords);
  words[0] = (mine.state ? 4 : 0) | (mine.loss ? 2 : 0) | (mine.gradient ? 1 : 0);
  std::memcpy(words.data() + 1, host.data(), host.size());
  const std::vector<std::int64_t> all = world.gather_words(words);
  const auto first = [&](std::int64_t bit) -> std::optional<int> {
    for (int r = 0; r < world.size(); ++r)
      if (all[static_cast<std::size_t>(r) * words.size()] & bit) return r;
    return std::nullopt;
  };
  const auto text = [&](int r, const char* what) {
    std::memcpy(host.data(), all.data() + static_cast<std::size_t>(r) * words.size() + 1, host.size());
    host.back() = 0;
    return fmt::format("rank {} on {}: {}", r, host.data(), what);
  };
  if (const auto r = first(4)) {
    if (*r == world.rank()) blame(*r, *mine.state, "after the step");
    return text(*r, "what it holds");
  }
  if (const auto r = first(2)) return text(*r, "forward, the loss of its tokens");
  if (const auto r = first(1)) return text(*r, "backward reduce, its share of the gradients");
  return {};
}

void require_finite_state(Communicator* world, Parameters& parameters, Backend& backend, const std::string& when) {
  const auto bad = first_not_finite(parameters, backend, false);
  int first = bad ? 0 : -1;
  if (world) {
    const std::int64_t word = bad ? 1 : 0;
    const std::vector<std::int64_t> all = world->gather_words(std::span(&word, 1));
    const auto it = std::find(all.begin(), all.end(), 1);
    first = it == all.end() ? -1 : static_cast<int>(it - all.begin());
  }
  if (first < 0) return;
  if (!world || first == world->rank()) blame(first, *bad, when);
  world->barrier();  // which that one does not come to: its verdict ends this call
}

void require_finite_pieces(Parameters& whole, Backend& backend, Parameters& pieces) {
  // A stage's ranks stand side by side and know their own tensors only.
  const RankPlace& here = pieces.place();
  const int ranks = here.parallelism.stage_ranks(), first = here.stage() * ranks;
  const auto at_fault = [&](const Parameter& p, std::int64_t element) -> std::optional<int> {
    const Parameter* mine = pieces.find(p.name);
    for (int r = first; mine && r < first + ranks; ++r)
      for (const ElementRun& run : held_runs(mine->cut(), {r, here.parallelism}))
        if (element >= run.at && element < run.at + run.count) return r;
    return std::nullopt;
  };
  std::vector<float> values;
  for (const Parameter& p : whole.all()) {
    if (!p.trained) continue;
    for (const auto& [memory, held] :
         {std::pair{&p.value, p.held}, {&p.first_moment, DType::f32}, {&p.second_moment, DType::f32}}) {
      values.resize(static_cast<std::size_t>(p.shape.elements()));
      backend.read({memory->get(), held, p.shape}, values);
      const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
      if (bad == values.end()) continue;
      const std::optional<int> rank = at_fault(p, bad - values.begin());
      blame(rank.value_or(here.rank), p.name, rank ? "as it came to be saved, and was before it was sent" : "as another stage gave it to be saved");
    }
  }
}

}  // namespace moeplan
