#include "executor/rendezvous/secure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <system_error>

#include "core/error.hpp"

namespace moeplan {
namespace {

constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void compress(std::array<std::uint32_t, 8>& state, const unsigned char* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 | static_cast<std::uint32_t>(block[4 * i + 1]) << 16 | static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  auto s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
    const std::uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

Token parse_token(std::string text, const std::string& where) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  Token token{};
  bool good = text.size() == 64;
  for (std::size_t i = 0; good && i < 32; ++i) {
    const auto [end, status] = std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, token[i], 16);
    good = status == std::errc() && end == text.data() + 2 * i + 2;
  }
  if (!good) throw InputError(where, fmt::format("holds no token ({} characters)", text.size()), "64 hex digits: od -An -N32 -tx1 /dev/urandom | tr -d ' \\n'");
  return token;
}

std::string read_some(int descriptor, const std::string& where) {
  std::string text;
  char block[256];
  while (text.size() < 1024) {
    const ssize_t n = ::read(descriptor, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(where, std::string("cannot be read: ") + std::strerror(errno), {});
    if (n == 0) break;
    text.append(block, static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

Digest sha256(std::string_view data) {
  std::array<std::uint32_t, 8> state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(data);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  const std::uint64_t bits = static_cast<std::uint64_t>(data.size()) * 8;
  for (int i = 7; i >= 0; --i) padded += static_cast<char>(bits >> 8 * i & 0xff);
  for (std::size_t at = 0; at < padded.size(); at += 64) compress(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
  Digest out{};
  for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(state[i / 4] >> 8 * (3 - i % 4));
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  std::string block(key.size() > 64 ? bytes_of(sha256(key)) : key);
  block.resize(64, '\0');
  std::string inner = block, outer = block;
  for (auto& c : inner) c = static_cast<char>(c ^ 0x36);
  for (auto& c : outer) c = static_cast<char>(c ^ 0x5c);
  inner += message;
  const Digest first = sha256(inner);
  outer += bytes_of(first);
  return sha256(outer);
}

Digest keyed_digest(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string message;
  for (const auto part : parts) {
    for (int i = 0; i < 8; ++i) message += static_cast<char>(static_cast<std::uint64_t>(part.size()) >> 8 * i & 0xff);
    message += part;
  }
  return hmac_sha256(key, message);
}

bool same(const Digest& a, std::string_view b) {
  if (b.size() != a.size()) return false;
  volatile unsigned char different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different = static_cast<unsigned char>(different | (a[i] ^ static_cast<unsigned char>(b[i])));
  return different == 0;
}

Digest random_digest() {
  Digest out{};
  std::size_t have = 0;
  while (have < out.size()) {
    const ssize_t n = getrandom(out.data() + have, out.size() - have, 0);
    if (n < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    if (n > 0) have += static_cast<std::size_t>(n);
  }
  return out;
}

Token read_token_file(const std::filesystem::path& path) {
  const std::string where = "token file " + shown(path.string());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) throw InputError(where, std::string("cannot be opened: ") + std::strerror(errno), {});
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } const closer{fd};
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) throw InputError(where, "is no regular file", {});
  if (info.st_uid != geteuid() && info.st_uid != 0) throw InputError(where, "belongs to another user", {});
  // A secret mounted by Kubernetes belongs to root and is readable by the pod's group; everything else is 0600 or 0400.
  const mode_t open_to_others = info.st_uid == 0 && geteuid() != 0 ? 037 : 077;
  if (info.st_mode & open_to_others) throw InputError(where, fmt::format("has mode {:04o}: others can reach it", info.st_mode & 0777), "chmod 600");
  return parse_token(read_some(fd, where), where);
}

Token read_token_descriptor(int descriptor) {
  const std::string where = fmt::format("token descriptor {}", descriptor);
  const std::string text = read_some(descriptor, where);
  ::close(descriptor);
  return parse_token(text, where);
}

Token find_token(const Environment& environment, const std::optional<std::filesystem::path>& file_flag) {
  if (file_flag) return read_token_file(*file_flag);
  if (const auto it = environment.find("MOEPLAN_TOKEN_FILE"); it != environment.end()) return read_token_file(it->second);
  if (const auto it = environment.find("MOEPLAN_TOKEN_FD"); it != environment.end()) {
    int fd = -1;
    const auto [end, status] = std::from_chars(it->second.data(), it->second.data() + it->second.size(), fd);
    if (status != std::errc() || end != it->second.data() + it->second.size() || fd < 3) throw InputError("MOEPLAN_TOKEN_FD", shown(it->second) + " is no descriptor", {});
    return read_token_descriptor(fd);
  }
  throw InputError("rendezvous", "no job token", "set MOEPLAN_TOKEN_FILE to a file of mode 0600 with the same 64 hex digits for all ranks; launch files do");
}

void forget_token(const Environment& environment) noexcept {
  const auto once = environment.find("MOEPLAN_TOKEN_ONCE"), file = environment.find("MOEPLAN_TOKEN_FILE");
  if (once != environment.end() && once->second == "1" && file != environment.end()) ::unlink(file->second.c_str());
}

void write_token_file(const std::filesystem::path& path) {
  const std::string where = "token file " + shown(path.string());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) throw InputError(where, std::string("cannot be made: ") + std::strerror(errno), {});
  std::string text;
  for (const auto b : random_digest()) text += fmt::format("{:02x}", b);
  const bool good = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (::close(fd) != 0 || !good) {
    ::unlink(path.c_str());
    throw InputError(where, "cannot be written", {});
  }
}

}  // namespace moeplan
