#include "executor/rendezvous/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace moeplan {
namespace {

std::string word(std::uint64_t v, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> 8 * i & 0xff);
  return out;
}

constexpr std::size_t kMac = 32, kLength = 4;

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string Channel::crypt(std::string_view text, bool by_first, std::uint64_t number) const {
  std::string out(text);
  for (std::size_t at = 0; at < out.size(); at += kMac) {
    const Digest stream = keyed_digest(bytes_of(key_), {"stream", by_first ? "first" : "second", word(number, 8), word(at, 8)});
    for (std::size_t i = at; i < out.size() && i < at + kMac; ++i) out[i] = static_cast<char>(out[i] ^ static_cast<char>(stream[i - at]));
  }
  return out;
}

Digest Channel::mac(std::string_view body, bool by_first, std::uint64_t number) const {
  return keyed_digest(bytes_of(key_), {"message", by_first ? "first" : "second", word(number, 8), body});
}

void Channel::send(std::string_view message) {
  if (message.size() > kLongestMessage) throw std::length_error("a rendezvous message of " + std::to_string(message.size()) + " bytes");
  if (!open()) return;
  const std::string body = crypt(message, first_, sent_);
  out_ += word(body.size(), kLength);
  out_ += body;
  out_ += bytes_of(mac(body, first_, sent_));
  ++sent_;
  flush();
}

void Channel::flush() {
  while (open() && !out_.empty()) {
    const ssize_t n = ::send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      out_.erase(0, static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    } else {
      out_.clear();   // what the peer has sent can still be read: `receive` closes
      return;
    }
  }
}

std::vector<std::string> Channel::receive() {
  bool ended = false;
  char block[65536];
  while (open()) {
    const ssize_t n = ::recv(fd(), block, sizeof block, MSG_DONTWAIT);
    if (n > 0) {
      in_.append(block, static_cast<std::size_t>(n));
      if (in_.size() > 4 * kLongestMessage) break;   // the rest waits in the kernel
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      ended = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      break;
    }
  }
  std::vector<std::string> messages;
  std::size_t at = 0;
  while (in_.size() - at >= kLength) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kLength; ++i) length |= static_cast<std::size_t>(static_cast<unsigned char>(in_[at + i])) << 8 * i;
    if (length > kLongestMessage) {
      ended = true;
      break;
    }
    if (in_.size() - at < kLength + length + kMac) break;
    const std::string_view body(in_.data() + at + kLength, length), check(in_.data() + at + kLength + length, kMac);
    if (!same(mac(body, !first_, received_), check)) {
      ended = true;
      break;
    }
    messages.push_back(crypt(body, !first_, received_));
    ++received_;
    at += kLength + length + kMac;
  }
  in_.erase(0, at);
  if (ended) close();
  return messages;
}

void Channel::drain(int limit_ms) {
  const int step = 10;
  for (int waited = 0; open() && wants_write() && waited <= limit_ms; waited += step) {
    pollfd p{fd(), POLLOUT, 0};
    ::poll(&p, 1, step);
    flush();
  }
}

}  // namespace moeplan
