#pragma once
// Loops that compilers vectorise themselves; each level's file compiles them anew.
#include <cstddef>
#include <cstdint>

#include "simd/inline.hpp"

namespace fusionloader {

FUSIONLOADER_INLINE void pack_loop(const uint8_t* const* planes, int channels, size_t size,
                                   uint32_t* out) {
  const uint8_t *red = planes[0], *green = planes[0], *blue = planes[0];
  if (channels == 3) green = planes[1], blue = planes[2];
  for (size_t i = 0; i < size; ++i)
    out[i] = red[i] | static_cast<uint32_t>(green[i]) << 8 | static_cast<uint32_t>(blue[i]) << 16;
}

// The order of the additions is Pillow's: another one moves pixels.
FUSIONLOADER_INLINE void affine_loop(const double* m, int y, size_t count, double* xs, double* ys) {
  const double row = y + 0.5, row_x = m[1] * row, row_y = m[4] * row;
  const double a = m[0], c = m[2], d = m[3], f = m[5];
  for (int x = 0; x < static_cast<int>(count); ++x) {
    const double column = x + 0.5;
    xs[x] = a * column + row_x + c;
    ys[x] = d * column + row_y + f;
  }
}

FUSIONLOADER_INLINE void perspective_loop(const double* m, int y, size_t count, double* xs,
                                          double* ys) {
  const double row = y + 0.5, row_x = m[1] * row, row_y = m[4] * row, row_z = m[7] * row;
  const double a = m[0], c = m[2], d = m[3], f = m[5], g = m[6];
  for (int x = 0; x < static_cast<int>(count); ++x) {
    const double column = x + 0.5, scale = g * column + row_z + 1;
    xs[x] = (a * column + row_x + c) / scale;
    ys[x] = (d * column + row_y + f) / scale;
  }
}

}  // namespace fusionloader
