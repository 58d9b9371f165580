#pragma once
/// A connection between two ranks that know the job's token: messages are encrypted and authenticated under a key of this
/// connection, in order, at most `kLongestMessage` bytes each. Never blocks; the owner polls the descriptor.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/rendezvous/secure.hpp"

namespace moeplan {

/// A descriptor that closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(); }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int release() { const int fd = fd_; fd_ = -1; return fd; }
  int fd_ = -1;
};

class Channel {
 public:
  static constexpr std::size_t kLongestMessage = std::size_t{1} << 20;

  Channel() = default;
  /// `first` tells the two ends apart: the keystreams of the two directions differ.
  Channel(Socket socket, const Digest& key, bool first) : socket_(std::move(socket)), key_(key), first_(first) {}

  [[nodiscard]] int fd() const { return socket_.fd(); }
  [[nodiscard]] bool open() const { return socket_.open(); }
  [[nodiscard]] bool wants_write() const { return !out_.empty(); }

  /// Queues `message` and sends what the socket takes now.
  void send(std::string_view message);
  /// Sends more of the queue.
  void flush();
  /// Reads what is there. A broken or forged message closes the channel; what was complete before it is returned.
  [[nodiscard]] std::vector<std::string> receive();
  /// Waits up to `limit` for the queue to empty.
  void drain(int limit_ms);
  void close() { socket_.close(); }

 private:
  [[nodiscard]] std::string crypt(std::string_view text, bool by_first, std::uint64_t number) const;
  [[nodiscard]] Digest mac(std::string_view body, bool by_first, std::uint64_t number) const;
  Socket socket_;
  Digest key_{};
  bool first_ = false;
  std::uint64_t sent_ = 0, received_ = 0;
  std::string in_, out_;
};

}  // namespace moeplan
