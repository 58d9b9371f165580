#pragma once
/// What every communicator must do, as cases that know nothing of the backend: tests run them over ranks as threads, the
/// program nccl_suite over processes on a GPU. A case runs once per rank and throws when an expectation fails.

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "executor/comm/communicator.hpp"
#include "executor/comm/reduce.hpp"

namespace moeplan::suite {

/// Where the buffers of a communicator live.
class Memory {
 public:
  virtual ~Memory() = default;
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;   ///< until the Memory ends
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
};

class HostMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override { return blocks_.emplace_back(std::make_unique<std::byte[]>(bytes + 1)).get(); }
  void upload(void* to, const void* from, std::size_t bytes) override { if (bytes) std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { if (bytes) std::memcpy(to, from, bytes); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

/// A typed buffer in a Memory.
template <class T>
class Buffer {
 public:
  Buffer(Memory& memory, std::vector<T> values) : memory_(memory), size_(values.size()), data_(static_cast<T*>(memory.allocate(values.size() * sizeof(T)))) {
    memory_.upload(data_, values.data(), size_ * sizeof(T));
  }
  Buffer(Memory& memory, std::size_t size) : Buffer(memory, std::vector<T>(size, T{})) {}
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(size_);
    memory_.download(out.data(), data_, size_ * sizeof(T));
    return out;
  }

 private:
  Memory& memory_;
  std::size_t size_;
  T* data_;
};

template <class T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  if (got.size() != want.size()) throw std::runtime_error(fmt::format("{}: {} elements, expected {}", what, got.size(), want.size()));
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(got[i] == want[i])) throw std::runtime_error(fmt::format("{}: element {} is {}, expected {}", what, i, got[i], want[i]));
}

struct Case {
  const char* name;
  void (*run)(Communicator&, Memory&);
};

/// All cases; each works for any number of ranks from 1 on. Values are small whole numbers, so that no order of addition differs.
[[nodiscard]] const std::vector<Case>& cases();

}  // namespace moeplan::suite
