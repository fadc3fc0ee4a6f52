#pragma once
// Rows of pixels on their way from a decoder to a result.
#include <cstddef>
#include <cstdint>

#include "image/views.hpp"

namespace fusionloader {

// Bytes that kernels may read past the last pixel of a source row, and write past the last byte of
// a row of results.
constexpr size_t row_slack = 64;

// Rows that the horizontal kernels take at once: the weights are then loaded once for all of them,
// which matters because decoding between two calls drives them out of the nearest cache.
constexpr int rows_at_once = 4;

// Gives rows of RGBX pixels, each followed by row_slack readable bytes.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Says which window will be read; false when it cannot be.
  virtual bool begin(Rect window) = 0;
  // Rows y .. y + count - 1 of the window, count <= rows_at_once, valid until the next call; `y`
  // ascending. False when they cannot be read.
  virtual bool rows(int y, int count, const uint8_t** rows) = 0;
};

class RowSink {
 public:
  virtual ~RowSink() = default;
  // Three planes `plane` bytes apart, each with row_slack readable bytes behind it. Every row comes
  // once, in any order.
  virtual void row(int y, const uint8_t* planes, size_t plane) = 0;
  // The same as RGBX pixels; false from a sink that wants planes.
  virtual bool pixels(int y, const uint8_t* row) {
    (void)y, (void)row;
    return false;
  }
};

}  // namespace fusionloader
