#pragma once
/// Errors. `InputError` is the one exception that leaves a room: something the user gave is wrong; the command ends with
/// exit code 2 and one line. An expected "no" is a returned `Rejection`; a bug of ours is an `assert`.

#include <stdexcept>
#include <string>
#include <string_view>

namespace moeplan {

/// One line for the user: where (file and field), what is wrong with the numbers, what would do.
class InputError : public std::runtime_error {
 public:
  InputError(std::string where, std::string what, std::string fix = {});

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::string& fix() const { return fix_; }

 private:
  std::string where_, reason_, fix_;
};

/// Text from a file, made safe to show: control characters and invalid UTF-8 escaped, at most `limit` bytes.
[[nodiscard]] std::string shown(std::string_view text, std::size_t limit = 80);

}  // namespace moeplan
