#include "core/json.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "core/nonfinite.hpp"

namespace moeplan {
namespace {

/// Builds the document while nlohmann's parser (which keeps its own stack, so depth cannot overflow ours) reads.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& where, const JsonLimits& limits) : where_(where), limits_(limits) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t& text) override {
    if (text.size() > 64) throw InputError(where_, "a number literal of " + std::to_string(text.size()) + " characters");
    return put(v);
  }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { refuse_duplicate_keys(*open_.back()); open_.pop_back(); return true; }
  bool end_array() override { open_.pop_back(); return true; }
  bool key(string_t& k) override { key_ = std::move(k); return true; }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& e) override {
    // "[json.exception...] parse error at line 1, column 2: syntax error while parsing value - REASON; last read: '...'"
    std::string what = e.what();
    if (const auto dash = what.find(" - "); dash != std::string::npos) what = what.substr(dash + 3);
    else if (const auto bracket = what.find("] "); bracket != std::string::npos) what = what.substr(bracket + 2);
    if (const auto last_read = what.find("; last read"); last_read != std::string::npos) what.resize(last_read);
    what = shown(what.substr(0, 120), 400);
    throw InputError(where_, fmt::format("not valid JSON at byte {} near {}: {}", position, shown(token, 24), what.substr(1, what.size() - 2)));
  }

 private:
  void refuse_duplicate_keys(const Json& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
      throw InputError(where_, "key " + shown(*twice) + " stands twice in one object");
  }
  template <class V>
  Json* put_value(V&& v) {
    if (++values_ > limits_.max_values) throw InputError(where_, fmt::format("more than {} values", limits_.max_values));
    if (open_.empty()) { root_ = Json(std::forward<V>(v)); return &root_; }
    Json& parent = *open_.back();
    if (parent.is_array()) { parent.push_back(Json(std::forward<V>(v))); return &parent.back(); }
    // Duplicates are refused when the object ends; appending keeps large objects linear.
    auto& object = parent.get_ref<Json::object_t&>();
    object.push_back({std::move(key_), Json(std::forward<V>(v))});
    return &object.back().second;
  }
  template <class V>
  bool put(V&& v) { put_value(std::forward<V>(v)); return true; }
  bool open(Json container) {
    if (open_.size() >= limits_.max_depth) throw InputError(where_, fmt::format("nested deeper than {} levels", limits_.max_depth));
    open_.push_back(put_value(std::move(container)));
    return true;
  }

  const std::string& where_;
  const JsonLimits& limits_;
  Json root_;
  std::vector<Json*> open_;
  std::size_t values_ = 0;
  std::string key_;
};

/// Replaces Infinity, -Infinity and NaN outside strings by strings of the same length, so that offsets stay true.
std::string without_nonfinite(std::string_view text) {
  std::string out(text);
  bool in_string = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char c = out[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (out.compare(i, word.size(), word) != 0) continue;
      std::string text_value = std::string("\"") + kNonfinite + (word == "NaN" ? "" : word.front() == '-' ? "-" : "+") + "\"";
      text_value.resize(word.size(), ' ');
      out.replace(i, word.size(), text_value);
      i += word.size() - 1;
      break;
    }
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    throw InputError(where, fmt::format("{} bytes, more than the {} this kind of file may have", text.size(), limits.max_bytes));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) throw InputError(where, "the file is empty");
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) throw InputError(where, fmt::format("not valid JSON at byte {}: a NUL byte", nul + 1));
  if (text.substr(0, 3) == "\xef\xbb\xbf") throw InputError(where, "starts with a byte order mark", "save it as plain UTF-8");
  Builder builder(where, limits);
  if (limits.tolerate_nonfinite_literals) {
    const std::string cleaned = without_nonfinite(text);
    Json::sax_parse(cleaned.begin(), cleaned.end(), &builder);
  } else {
    Json::sax_parse(text.begin(), text.end(), &builder);
  }
  return builder.take();
}

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::string name = path.string();
  const auto fail = [&](const std::string& what) -> InputError { return {name, what}; };
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a FIFO must not hang us
  if (fd < 0) throw fail(std::string("cannot open: ") + std::strerror(errno));
  struct Closer { int fd; ~Closer() { ::close(fd); } } closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw fail(std::string("cannot stat: ") + std::strerror(errno));
  if (S_ISDIR(info.st_mode)) throw fail("is a directory, not a file");
  if (!S_ISREG(info.st_mode)) throw fail("is not a regular file");
  if (static_cast<std::size_t>(info.st_size) > max_bytes)
    throw fail(fmt::format("{} bytes, more than the {} this kind of file may have", info.st_size, max_bytes));
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw fail(std::string("cannot read: ") + std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

Json load_json(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

void write_text_file(const std::filesystem::path& requested, std::string_view text) {
  std::error_code ignored;
  std::filesystem::path path = requested;
  if (std::filesystem::exists(path, ignored)) {
    // A rename would put a file where a device was (/dev/stdout), or cut a link instead of following it.
    if (!std::filesystem::is_regular_file(path, ignored)) throw InputError(path.string(), "cannot be written: it is not a regular file");
    if (auto target = std::filesystem::canonical(path, ignored); !ignored) path = std::move(target);
  }
  std::string temporary = path.string() + ".XXXXXX";
  const int fd = ::mkstemp(temporary.data());
  if (fd < 0) throw InputError(path.string(), std::string("cannot be written: ") + std::strerror(errno));
  std::size_t done = 0;
  bool ok = true;
  while (ok && done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ok = false;
    else done += static_cast<std::size_t>(n);
  }
  ok = ok && ::fchmod(fd, 0644) == 0 && ::fsync(fd) == 0;
  int error = errno;
  ok = (::close(fd) == 0) && ok;
  if (ok && ::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (ok) error = errno;
  ::unlink(temporary.c_str());
  throw InputError(path.string(), std::string("cannot be written: ") + std::strerror(error));
}

}  // namespace moeplan
