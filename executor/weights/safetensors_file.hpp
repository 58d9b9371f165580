#pragma once
/// Safetensors directories read by slice, and files written. Headers are checked as sim/program/safetensors.cpp says; payloads are mapped,
/// never more than the slice that is asked for is touched.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/program/checkpoint.hpp"

namespace moeplan {

/// How the elements of a plain type become floats.
struct NumberType {
  std::int64_t bytes = 0;   ///< of one
  void (*decode)(const std::byte* from, std::span<float> to) = nullptr;
};
/// Throws InputError for types that are not numbers.
[[nodiscard]] NumberType number_type(const StoredTensor& tensor, const std::string& where);

/// The tensors of one model or adapter directory.
class TensorFiles {
 public:
  /// A directory: `model.safetensors.index.json` with its shards, else every `*.safetensors` in it. Throws InputError where a mapped tensor
  /// is not in its shard, a shard has tensors that the index lacks, or a name comes twice.
  explicit TensorFiles(const std::filesystem::path& directory);
  /// One file of a directory.
  TensorFiles(const std::filesystem::path& directory, const std::string& file);
  TensorFiles(TensorFiles&&) noexcept;
  ~TensorFiles();

  /// `told` hears of each stretch before it is read; `floats` reads in stretches of at most 2^24 elements.
  void on_read(std::function<void()> told) { told_ = std::move(told); }
  [[nodiscard]] const StoredTensor* find(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::string& where() const { return where_; }
  /// Bytes `begin` to `end` of a tensor.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name, std::int64_t begin, std::int64_t end) const;
  /// All of them; nothing is touched before it is read.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) const;
  /// Elements `begin` to `begin + count` of a tensor of a plain type as floats. Throws InputError for types that are not numbers.
  [[nodiscard]] std::vector<float> floats(const std::string& name, std::int64_t begin, std::int64_t count) const;

 private:
  struct Shard;
  struct Entry {
    StoredTensor tensor;
    std::size_t shard = 0;
  };
  void add(const std::filesystem::path& directory, const std::string& file);
  std::string where_;
  std::function<void()> told_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::map<std::string, Entry> tensors_;
};

/// A tensor to write; f32.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// Puts the tensors into the order of a safetensors file, which is by name, and gives what stands before their bytes there: all are F32, the header is
/// padded to eight bytes, `metadata` as given besides format "pt".
[[nodiscard]] std::string safetensors_header(std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata = {});
/// The parts of the file, in the memory of `header` and of the tensors it was made of.
[[nodiscard]] std::vector<std::string_view> safetensors_parts(const std::string& header, const std::vector<NamedTensor>& tensors);
/// The whole of it.
[[nodiscard]] std::string safetensors_bytes(std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& metadata = {});

}  // namespace moeplan
