#pragma once
// The pixel that an image shows at a point. Pixels are packed: one in 32 bits, red lowest (grey in
// all three places), so that a pixel is one load.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

struct PackedImage {
  // Pixels that vector kernels may read behind the last, and write behind a row.
  static constexpr size_t slack = 16;

  const uint32_t* pixels;
  int width, height;  // at least 1

  FUSIONLOADER_BOTH uint32_t at(int x, int y) const {
    return pixels[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
  }
};

FUSIONLOADER_BOTH uint32_t packed(uint32_t red, uint32_t green, uint32_t blue) {
  return red | green << 8 | blue << 16;
}

FUSIONLOADER_BOTH uint8_t channel_level(uint32_t pixel, int channel) {
  return static_cast<uint8_t>(pixel >> 8 * channel);
}

// At a point in 16.16 fixed point.
FUSIONLOADER_BOTH uint32_t nearest_fixed(const PackedImage& image, uint32_t fixed_x,
                                         uint32_t fixed_y, uint32_t fill) {
  const int x = static_cast<int32_t>(fixed_x) >> 16, y = static_cast<int32_t>(fixed_y) >> 16;
  return x >= 0 && x < image.width && y >= 0 && y < image.height ? image.at(x, y) : fill;
}

FUSIONLOADER_BOTH uint32_t nearest(const PackedImage& image, double x, double y, uint32_t fill) {
  const bool inside = x >= 0 && x < image.width && y >= 0 && y < image.height;
  return inside ? image.at(static_cast<int>(x), static_cast<int>(y)) : fill;
}

FUSIONLOADER_BOTH double linear(double a, double b, double d) { return a + (b - a) * d; }

FUSIONLOADER_BOTH double cubic(double a, double b, double c, double e, double d) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - e, p4 = -a + b - c + e;
  return b + d * (p2 + d * (p3 + d * p4));
}

// The points on one axis that a filter of `size` taps reads, and how far behind the middle it is.
template <int size>
struct Taps {
  size_t at[size];
  double distance;

  FUSIONLOADER_BOTH Taps(double position, int length) {
    const double shifted = position - 0.5;
    const int whole = shifted < 0 ? -1 : static_cast<int>(shifted);  // floor: at least -0.5
    const int first = whole - (size / 2 - 1);
    distance = shifted - whole;
    for (int t = 0; t < size; ++t) at[t] = static_cast<size_t>(clamped(first + t, 0, length - 1));
  }
};

// `size` is 2 for bilinear, 4 for bicubic; the point is inside.
template <int size>
FUSIONLOADER_BOTH uint32_t filtered(const PackedImage& image, double x, double y) {
  const Taps<size> columns(x, image.width), rows(y, image.height);
  uint32_t result = 0;
  for (int channel = 0; channel < 3; ++channel) {
    double lines[size];
    for (int line = 0; line < size; ++line) {
      const uint32_t* row = image.pixels + rows.at[line] * static_cast<size_t>(image.width);
      double v[size];
      for (int t = 0; t < size; ++t)
        v[t] = static_cast<double>(channel_level(row[columns.at[t]], channel));
      if constexpr (size == 2)
        lines[line] = linear(v[0], v[1], columns.distance);
      else
        lines[line] = cubic(v[0], v[1], v[2], v[3], columns.distance);
    }
    double value;
    if constexpr (size == 2)
      value = linear(lines[0], lines[1], rows.distance);
    else
      value = cubic(lines[0], lines[1], lines[2], lines[3], rows.distance);
    result |= static_cast<uint32_t>(clamped(value, 0.0, 255.0)) << 8 * channel;
  }
  return result;
}

template <int size>
FUSIONLOADER_BOTH uint32_t filtered_or(const PackedImage& image, double x, double y,
                                       uint32_t fill) {
  if (x < 0 || x >= image.width || y < 0 || y >= image.height) return fill;
  // 0 / 0 in a perspective: Pillow ends up with black.
  if (std::isnan(x) || std::isnan(y)) return 0;
  return filtered<size>(image, x, y);
}

}  // namespace fusionloader
