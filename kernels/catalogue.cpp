#include "kernels/catalogue.hpp"

#include <charconv>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/write.hpp"

namespace moeplan {
namespace {

struct Row {
  std::string_view kind;
  std::string_view doc;
  Backends backends{};
};

/// What `moeplan ops` says of each operator, and which implementations are in the tree.
constexpr std::array rows{
    Row{"embedding", "table look-up of token ids (or positions), with an optional LoRA pair", {.reference = true, .cuda = true}},
    Row{"linear", "y = x W^T, bias and LoRA pair optional, W frozen, quantised or trained", {.reference = true, .cuda = true}},
    Row{"head_linear", "one small product a head: absorbed MLA projections, grouped output", {.reference = true, .cuda = true}},
    Row{"rms_norm", "RMSNorm, optionally fused with the residual sum before it", {.reference = true, .cuda = true}},
    Row{"gated_rms_norm", "RMSNorm with an output gate (KDA, Gated DeltaNet, Mamba-2)", {.reference = true, .cuda = true}},
    Row{"layer_norm", "LayerNorm with or without bias", {.reference = true, .cuda = true}},
    Row{"rope", "rotary position embedding: plain, partial, linear, YaRN, Llama 3", {.reference = true, .cuda = true}},
    Row{"split", "columns of one tensor as several views; moves nothing", {.reference = true, .cuda = true}},
    Row{"join", "columns of two tensors side by side", {.reference = true, .cuda = true}},
    Row{"glu", "gated feed-forward activation: SwiGLU, GeGLU, SiTU, clamped", {.reference = true, .cuda = true}},
    Row{"activation", "elementwise function: silu, gelu, relu squared, sigmoid", {.reference = true, .cuda = true}},
    Row{"add", "residual sum", {.reference = true, .cuda = true}},
    Row{"mul_gate", "product with a gate, elementwise, head-wise or one column", {.reference = true, .cuda = true}},
    Row{"attention", "causal softmax attention: GQA, MLA, sliding window, sinks", {.reference = true, .cuda = true}},
    Row{"indexer", "lightning indexer: scores of all visible keys and their top-k", {.reference = true, .cuda = true}},
    Row{"sparse_attention", "softmax attention over selected keys: latent MLA or gathered", {.reference = true, .cuda = true}},
    Row{"compress", "several tokens into one key, gated or mean", {.reference = true, .cuda = true}},
    Row{"compressed_attention", "sliding window beside compressed keys (DeepSeek-V4)", {.reference = true, .cuda = true}},
    Row{"kda", "Kimi Delta Attention, chunked", {.reference = true, .cuda = true}},
    Row{"gated_delta_net", "Gated DeltaNet, chunked", {.reference = true, .cuda = true}},
    Row{"mamba2", "state space scan with one decay a head", {.reference = true, .cuda = true}},
    Row{"mamba1", "selective scan with a decay for each channel and state", {.reference = true, .cuda = true}},
    Row{"lightning_attention", "linear attention with a fixed decay a head", {.reference = true, .cuda = true}},
    Row{"short_conv", "short causal depthwise convolution with SiLU", {.reference = true, .cuda = true}},
    Row{"attention_residual", "softmax mix of the running sum and stored block inputs (K3)", {.reference = true, .cuda = true}},
    Row{"hyper_expand", "opens hyper-connection streams", {.reference = true, .cuda = true}},
    Row{"hyper_pre", "hyper-connections: a sublayer's input and its mixing coefficients", {.reference = true, .cuda = true}},
    Row{"hyper_post", "hyper-connections: a sublayer's output back into the streams", {.reference = true, .cuda = true}},
    Row{"router", "expert scores, choice and weights", {.reference = true, .cuda = true}},
    Row{"permute", "token rows copied and ordered by expert", {.reference = true, .cuda = true}},
    Row{"grouped_linear", "linear over ragged rows of the local experts, with LoRA pairs", {.reference = true, .cuda = true}},
    Row{"combine", "weighted sum of the experts' rows back into tokens", {.reference = true, .cuda = true}},
    Row{"cross_entropy", "head and loss in one, chunked over tokens and vocabulary", {.reference = true, .cuda = true}},
    Row{"adamw", "optimizer step over a shard", {.reference = true, .cuda = true}},
    Row{"grad_norm", "sum of squares of a shard of gradients", {.reference = true, .cuda = true}},
    Row{"cast", "change between f32, bf16 and f16", {.reference = true, .cuda = true}},
    Row{"quantise", "store a matrix block-quantised", {.reference = true, .cuda = true}},
    Row{"dequantise", "read a block-quantised matrix back", {.reference = true, .cuda = true}},
};

template <std::size_t... I>
constexpr bool rows_follow_the_variant(std::index_sequence<I...>) {
  return ((rows[I].kind == std::variant_alternative_t<I, Op>::kind) && ...);
}
static_assert(rows.size() == std::variant_size_v<Op>, "the table has one row for each operator");
static_assert(rows_follow_the_variant(std::make_index_sequence<std::variant_size_v<Op>>{}), "the table is in the order of the variant");

template <class T>
concept HasWorkspace = requires(const T& op) { op.workspace(Pass::forward, Wants{}); };
template <class T>
concept HasBytesMoved = requires(const T& op) { op.bytes_moved(Pass::forward, Wants{}); };

Wants possible_of(const Operands& operands, Wants wants) {
  bool input = false, weight = false;
  for (const Operand& o : operands) {
    input = input || o.role == Role::input;
    weight = weight || (o.role == Role::weight && o.trained);
  }
  return {wants.input_grad && input, wants.weight_grad && weight};
}

constexpr bool idle(Pass pass, Wants wants) { return pass == Pass::backward && wants == Wants{false, false}; }

Bytes derived_bytes_moved(const Operands& operands, Pass pass, Wants wants) {
  Bytes sum{};
  for (const Operand& o : operands) {
    const Bytes each = o.bytes();
    if (pass == Pass::forward) {
      sum += each;
      continue;
    }
    if (o.role == Role::output) sum += each;                                                        // its gradient
    if (needed(o.need, wants)) sum += each;                                                         // read again
    if (o.role == Role::input && wants.input_grad) sum += each;                                     // gradient written
    if (o.role == Role::weight && o.trained && wants.weight_grad) sum += each;                      // gradient written
  }
  return sum;
}

template <std::size_t I = 0, class F>
void for_each_operator(F&& f) {
  if constexpr (I < std::variant_size_v<Op>) {
    static_assert(Operator<std::variant_alternative_t<I, Op>>);
    f(std::type_identity<std::variant_alternative_t<I, Op>>{});
    for_each_operator<I + 1>(f);
  }
}

template <class Member>
std::string text_of(const Member& value) {
  if constexpr (NamedEnum<Member>) return std::string(name_of(value));
  else if constexpr (std::is_same_v<Member, bool>) return value ? "true" : "false";
  else return std::to_string(value);
}

/// False if `text` is not a value of the member's type within the field's range.
template <class Member>
bool parse_member(std::string_view text, const Range& range, Member& out) {
  if constexpr (NamedEnum<Member>) {
    for (const auto& [value, name] : EnumNames<Member>::names)
      if (name == text) return out = value, true;
    return false;
  } else if constexpr (std::is_same_v<Member, bool>) {
    out = text == "true";
    return out || text == "false";
  } else {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    const double v = static_cast<double>(out);
    return error == std::errc{} && end == text.data() + text.size() && v <= range.high && (range.open_low ? v > range.low : v >= range.low);
  }
}

std::string_view next_word(std::string_view& rest) {
  const std::size_t space = std::min(rest.find(' '), rest.size());
  const std::string_view word = rest.substr(0, space);
  rest.remove_prefix(std::min(space + 1, rest.size()));
  return word;
}

/// Numbers that a call's time does not hang on; keys leave them out.
template <class Member>
constexpr bool is_continuous = std::is_floating_point_v<Member> || std::is_same_v<Member, std::vector<double>>;

template <class T>
bool parse_field(std::string_view name, std::string_view text, T& op) {
  bool done = false;
  for_each_field<T>([&](const auto& f) {
    using Member = std::remove_cvref_t<decltype(op.*(f.member))>;
    if constexpr (!is_continuous<Member>)
      if (f.name == name) done = parse_member(text, f.range, op.*(f.member));
  });
  return done;
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::input: return "input";
    case Role::index: return "index";
    case Role::weight: return "weight";
    case Role::output: return "output";
    case Role::aux: return "aux";
  }
  return "?";
}

std::string_view need_name(Need need) {
  switch (need) {
    case for_input_grad: return "input_grad";
    case for_weight_grad: return "weight_grad";
    case for_any_grad: return "any_grad";
    default: return "no";
  }
}

Json described(const Operand& o) {
  Json shape = Json::array();
  for (int i = 0; i < o.shape.rank; ++i) shape.push_back(o.shape[i]);
  Json out{{"name", std::string(o.name)}, {"role", std::string(role_name(o.role))}, {"shape", std::move(shape)},
           {"dtype", std::string(name_of(o.dtype))}, {"needed_for", std::string(need_name(o.need))}};
  if (o.trained) out["trained"] = true;
  if (o.ragged) out["ragged"] = true;
  return out;
}

}  // namespace

std::string_view kind(const Op& op) { return rows[op.index()].kind; }

Operands operands(const Op& op) {
  return std::visit([](const auto& o) { return o.operands(); }, op);
}

bool is_view(const Op& op) {
  return std::visit([]<class T>(const T&) { return requires { T::view; }; }, op);
}

Wants possible(const Op& op, Wants wants) { return possible_of(operands(op), wants); }

Flops flops(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::backward) wants = possible(op, wants);
  if (idle(pass, wants)) return {};
  return std::visit([&](const auto& o) { return o.flops(pass, wants); }, op);
}

Bytes workspace(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::backward) wants = possible(op, wants);
  if (idle(pass, wants)) return {};
  return std::visit([&]<class T>(const T& o) -> Bytes {
    if constexpr (HasWorkspace<T>) return o.workspace(pass, wants);
    else return {};
  }, op);
}

Bytes bytes_moved(const Op& op, Pass pass, Wants wants) {
  return std::visit([&]<class T>(const T& o) -> Bytes {
    const Operands list = o.operands();
    const Wants done = pass == Pass::backward ? possible_of(list, wants) : wants;
    if (idle(pass, done)) return {};
    if constexpr (HasBytesMoved<T>) return o.bytes_moved(pass, done);
    else return derived_bytes_moved(list, pass, done);
  }, op);
}

Bytes kept_bytes(const Op& op, Wants wants) {
  const Operands list = operands(op);
  const Wants done = possible_of(list, wants);
  Bytes sum{};
  for (const Operand& o : list)
    if (o.role != Role::weight && needed(o.need, done)) sum += o.bytes();
  return sum;
}

std::string key(const Op& op, Pass pass, Wants wants) {
  return std::visit([&]<class T>(const T& o) {
    std::string text(T::kind);
    const T standard{};
    for_each_field<T>([&](const auto& f) {
      using Member = std::remove_cvref_t<decltype(o.*(f.member))>;
      if constexpr (!is_continuous<Member>) {
        if (o.*(f.member) == standard.*(f.member)) return;
        text.append(1, ' ').append(f.name).append(1, '=').append(text_of(o.*(f.member)));
      }
    });
    if (pass == Pass::forward) return text + " forward";
    text += " backward";
    if (wants.input_grad) text += " dx";
    if (wants.weight_grad) text += " dw";
    return text;
  }, op);
}

std::optional<OpCall> parse_key(std::string_view text) {
  const std::string_view name = next_word(text);
  std::optional<OpCall> out;
  for_each_operator([&]<class T>(std::type_identity<T>) {
    if (out || name != T::kind) return;
    T op{};
    OpCall call;
    std::string_view word = next_word(text);
    for (; word.find('=') != std::string_view::npos; word = next_word(text)) {
      const std::size_t sign = word.find('=');
      if (!parse_field(word.substr(0, sign), word.substr(sign + 1), op)) return;
    }
    if (word == "backward") {
      call.pass = Pass::backward;
      call.wants = {false, false};
      while (!text.empty()) {
        word = next_word(text);
        if (word == "dx") call.wants.input_grad = true;
        else if (word == "dw") call.wants.weight_grad = true;
        else return;
      }
    } else if (word != "forward" || !text.empty()) {
      return;
    }
    call.op = op;
    out = std::move(call);
  });
  return out;
}

Backends backends(std::string_view name) {
  for (const Row& row : rows)
    if (row.kind == name) return row.backends;
  return {};
}

std::vector<Op> examples() {
  std::vector<Op> out;
  for_each_operator([&]<class T>(std::type_identity<T>) { out.emplace_back(T::cases().front()); });
  return out;
}

std::vector<Op> all_cases() {
  std::vector<Op> out;
  for_each_operator([&]<class T>(std::type_identity<T>) {
    for (const T& each : T::cases()) out.emplace_back(each);
  });
  return out;
}

Json describe() {
  Json list = Json::array();
  for_each_operator([&]<class T>(std::type_identity<T>) {
    const Row& row = rows[list.size()];
    Json fields = Json::array();
    const T standard{};
    for_each_field<T>([&](const auto& f) {
      Json each{{"name", std::string(f.name)}, {"default", to_json(standard.*(f.member))}};
      if (!f.doc.empty()) each["doc"] = std::string(f.doc);
      fields.push_back(std::move(each));
    });
    Json signature = Json::array();
    const T example = T::cases().front();
    for (const Operand& o : example.operands()) signature.push_back(described(o));
    list.push_back(Json{{"name", std::string(T::kind)}, {"doc", std::string(row.doc)},
                        {"backends", {{"reference", row.backends.reference}, {"cuda", row.backends.cuda}}},
                        {"fields", std::move(fields)}, {"example", key(example, Pass::forward)}, {"operands", std::move(signature)}});
  });
  return list;
}

}  // namespace moeplan
