#pragma once
/// Text in generated scripts and YAML, so that a shell or a YAML reader gives back exactly what went in.

#include <string>
#include <string_view>

namespace moeplan {

/// `text` as one POSIX shell word, always in single quotes: a'b -> 'a'\''b'. Throws InputError naming `what` if it holds a NUL or a
/// newline, which no file name in a launch file needs and which would hide commands from the reader.
[[nodiscard]] std::string shell_word(std::string_view text, std::string_view what);

/// As `shell_word`, for an operand: a leading - is written ./-, for programs that would take it for an option.
[[nodiscard]] std::string shell_path(std::string_view path, std::string_view what);

/// `text` as a double-quoted YAML scalar (JSON's escapes). Throws InputError naming `what` on invalid UTF-8 or NUL.
[[nodiscard]] std::string yaml_text(std::string_view text, std::string_view what);

/// Names that go unquoted into directives: job, partition, account, image. Throws InputError naming `what` unless all characters are
/// letters, digits or among `extra`, the first is a letter or digit, and there are 1 to `most` of them.
[[nodiscard]] std::string checked_name(std::string_view name, std::string_view what, std::string_view extra, std::size_t most = 128);

}  // namespace moeplan
