#include "executor/walk/packing.hpp"

#include <type_traits>

#include "core/error.hpp"

namespace moeplan {
namespace {

template <class O>
concept Packable = requires(O& o) { o.packed_sequences = std::int64_t{1}; };

std::size_t place_of(const Op& op, std::string_view name) {
  const Operands list = operands(op);
  std::size_t at = 0;
  while (at < list.size() && list[at].name != name) ++at;
  return at;
}

template <class O>
constexpr bool mixes_tokens = std::is_same_v<O, op::CompressedAttention> || std::is_same_v<O, op::Compress>;

}  // namespace

std::optional<PackedCall> packed(const Op& op, std::int64_t sequences) {
  return std::visit([&]<class O>(O each) -> std::optional<PackedCall> {
    if constexpr (Packable<O>) {
      each.packed_sequences = sequences;
      return PackedCall{each, place_of(each, "starts"), false};
    } else if constexpr (std::is_same_v<O, op::Rope>) {
      each.positions = true;
      return PackedCall{each, place_of(each, "positions"), true};
    } else if constexpr (mixes_tokens<O>) {
      throw InputError(std::string(O::kind), "cannot keep packed sequences apart", "give one document a sequence (--no-packing)");
    } else {
      return std::nullopt;
    }
  }, op);
}

}  // namespace moeplan
