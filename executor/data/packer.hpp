#pragma once
/// Documents into micro-batches of whole rows. Packed, rows are filled one document after the other and the boundaries are kept, so that no
/// token sees another document; a document that does not fit is cut, its rest begins the next row. Unpacked, each row is the head of one
/// document, padded. Documents come in a fresh seeded order each epoch.

#include "executor/data/dataset.hpp"
#include "executor/walk/batch.hpp"

namespace moeplan {

/// Where in the data training is; all that a resume needs.
struct DataPosition {
  std::int64_t epoch = 0, document = 0, token = 0;   ///< `document` in the epoch's order, `token` inside it
  bool operator==(const DataPosition&) const = default;
};

class Packer {
 public:
  Packer(Dataset dataset, std::int64_t rows, std::int64_t length, bool pack, std::uint64_t seed);

  [[nodiscard]] Batch next();
  [[nodiscard]] DataPosition position() const { return at_; }
  void seek(const DataPosition& position);

 private:
  [[nodiscard]] std::int64_t chosen(std::int64_t n) const;
  void advance();
  Dataset dataset_;
  std::int64_t rows_, length_;
  bool pack_;
  std::uint64_t seed_;
  DataPosition at_;
  Document open_;
  bool loaded_ = false;
};

}  // namespace moeplan
