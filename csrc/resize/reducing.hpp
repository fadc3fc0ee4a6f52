#pragma once
// Pillow's Image.reduce on rows: each pixel is the mean of a rectangle of pixels.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/rows.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// The window of another source, `columns` x `rows` of its pixels to one, fewer at its right and
// bottom.
class ReducingSource final : public RowSource {
 public:
  explicit ReducingSource(SimdLevel level) : level_(level) {}

  // `source` must outlive the use of its rows.
  void reduce(RowSource& source, Rect window, int columns, int rows);

  bool begin(Rect window) override;
  bool rows(int y, int count, const uint8_t** rows) override;

  void release_large_buffers();

 private:
  bool add_up(int first, int count);
  void divide(int rows, uint8_t* to);

  SimdLevel level_;
  RowSource* source_ = nullptr;
  Rect window_{}, read_{};  // of the source
  int columns_ = 1, rows_ = 1;
  size_t stride_ = 0;
  std::vector<uint32_t> sums_;
  std::vector<uint8_t> buffer_;
};

}  // namespace fusionloader
