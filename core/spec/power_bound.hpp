#pragma once
/// What binds a call, as far as what it draws and how it follows the clock go by that.

namespace moeplan {

/// Seconds of a call's flops and of its bytes by the data sheet.
struct PowerBound {
  double compute = 0, traffic = 0;

  /// Its time is that of its flops: it then follows the clock, else memory sets it. The same product is of one kind
  /// with many rows and of the other with few, so they are measured apart and asked apart.
  [[nodiscard]] bool by_products() const { return compute >= traffic; }
  /// Its energy is told apart into products and bytes: at a quarter of the bytes' time products draw a third of it
  /// (H200: 1,100 W and 523 W at full rate).
  [[nodiscard]] bool has_products() const { return 4 * compute >= traffic; }
};

}  // namespace moeplan
