#pragma once
// Bytes of a file, and a rectangle of pixels.
#include <cstddef>
#include <cstdint>

namespace fusionloader {

struct ByteView {
  const uint8_t* data;
  size_t size;
};

struct Rect {
  int x, y, width, height;
};

}  // namespace fusionloader
