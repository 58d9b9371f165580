#pragma once
/// Hyper-connections, before a sublayer: n = rms(X) over all m h columns (no weight), z = fn n * scale + base, and
///   pre = sigmoid(z_pre) [m]                      y = sum_j pre_j X_j        the sublayer's input
///   post = 2 sigmoid(z_post) [m]                  how its output returns to the streams (`hyper_post`)
///   mixing = Sinkhorn(exp(z_mix)) [m, m]          how the streams mix (mhc only: doubly stochastic)
/// Forms: `mhc` (DeepSeek-V4, GLM-5.3-Flash; fn [(2 + m) m, m h], scale [3]), `input` (Hy4's iHC; fn [2 m, m h], scale [2]: streams do
/// not mix), `head` (fn [m, m h], scale [1]: only y, before the final norm), `mean` (no weights: y = mean_j X_j, GLM-5.3-Flash's head).
/// One scale for each of pre, post, mixing.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

enum class HyperForm : std::uint8_t { mhc, input, head, mean };

}  // namespace moeplan::op

namespace moeplan {

template <>
struct EnumNames<op::HyperForm> {
  static constexpr std::array names{std::pair{op::HyperForm::mhc, std::string_view("mhc")}, std::pair{op::HyperForm::input, std::string_view("input")},
                                    std::pair{op::HyperForm::head, std::string_view("head")}, std::pair{op::HyperForm::mean, std::string_view("mean")}};
};

}  // namespace moeplan

namespace moeplan::op {

struct HyperPre {
  static constexpr std::string_view kind = "hyper_pre";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t streams = 0;   ///< m
  HyperForm form = HyperForm::mhc;
  Training training = Training::frozen;
  std::int64_t sinkhorn_steps = 20;
  bool affine = true;         ///< base and scale; Hy4's head has neither
  double epsilon = 1e-6;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &HyperPre::tokens).at_least(0), field("hidden", &HyperPre::hidden).above(0),
                           field("streams", &HyperPre::streams, "m").above(0), field("form", &HyperPre::form, "mhc, input, head or mean"),
                           field("training", &HyperPre::training), field("sinkhorn_steps", &HyperPre::sinkhorn_steps, "row and column normalisations").at_least(0),
                           field("affine", &HyperPre::affine, "base and scale"),
                           field("epsilon", &HyperPre::epsilon).above(0));
  }

  /// Rows of fn.
  [[nodiscard]] std::int64_t coefficients() const { return (form == HyperForm::mhc ? 2 + streams : form == HyperForm::input ? 2 : 1) * streams; }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    const std::int64_t width = streams * hidden;
    Operands o;
    if (form == HyperForm::mean) {
      o.push_back({"streams", Role::input, {tokens, width}, DType::bf16, not_needed});
      o.push_back({"y", Role::output, {tokens, hidden}});
      return o;
    }
    o.push_back({"streams", Role::input, {tokens, width}, DType::bf16, for_any_grad});
    o.push_back({"fn", Role::weight, {coefficients(), width}, DType::f32, for_input_grad, full});
    if (affine) o.push_back({"base", Role::weight, {coefficients()}, DType::f32, for_any_grad, full});
    if (affine) o.push_back({"scale", Role::weight, {form == HyperForm::mhc ? 3 : form == HyperForm::input ? 2 : 1}, DType::f32, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, hidden}});
    if (form != HyperForm::head) o.push_back({"post", Role::output, {tokens, streams}, DType::f32});
    if (form == HyperForm::mhc) o.push_back({"mixing", Role::output, {tokens, streams * streams}, DType::f32});
    o.push_back({"raw", Role::aux, {tokens, coefficients()}, DType::f32, for_any_grad});   // fn n; the rest is computed again from it
    o.push_back({"inverse_rms", Role::aux, {tokens}, DType::f32, for_any_grad});
    return o;
  }

  /// The product with fn, the norm and the mix forward; twice the product (input and weight gradient) and the mix's two backward.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = num(tokens), width = num(streams) * num(hidden), c = num(coefficients());
    if (form == HyperForm::mean) return {pass == Pass::forward || wants.input_grad ? t * width : 0};
    const double sinkhorn = form == HyperForm::mhc ? 4 * num(sinkhorn_steps) * num(streams) * num(streams) : 0;
    if (pass == Pass::forward) return {t * (2 * width * c + 4 * width + sinkhorn)};
    const bool dw = wants.weight_grad && training == Training::full;
    if (!wants.input_grad && !dw) return {0};
    return {t * ((wants.input_grad ? 2 * width * c + 8 * width : 0) + (dw ? 2 * width * c : 0) + 2 * width + 2 * sinkhorn)};
  }

  static std::vector<HyperPre> cases() {
    return {{3, 8, 4}, {5, 6, 2, HyperForm::input, Training::full}, {4, 5, 3, HyperForm::head, Training::full}, {2, 4, 2, HyperForm::mhc, Training::full, 3},
            {2, 4, 3, HyperForm::head, Training::full, 0, false}, {3, 6, 4, HyperForm::mean}, {0, 8, 4}};
  }

  bool operator==(const HyperPre&) const = default;
};

}  // namespace moeplan::op
