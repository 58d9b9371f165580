#pragma once
/// Opens hyper-connection streams: the embedding's output, once a stream, side by side: [t, h] -> [t, m h].

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct HyperExpand {
  static constexpr std::string_view kind = "hyper_expand";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t streams = 0;   ///< m

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &HyperExpand::tokens).at_least(0), field("hidden", &HyperExpand::hidden).above(0),
                           field("streams", &HyperExpand::streams, "m").above(0));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}});
    o.push_back({"streams", Role::output, {tokens, streams * hidden}});
    return o;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    return {pass == Pass::backward && wants.input_grad ? num(tokens) * num(hidden) * num(streams - 1) : 0};
  }

  static std::vector<HyperExpand> cases() { return {{3, 16, 4}, {5, 7, 2}, {2, 8, 1}, {0, 8, 4}}; }

  bool operator==(const HyperExpand&) const = default;
};

}  // namespace moeplan::op
