#pragma once
// Arithmetic of one level of one pixel.
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

// Pillow's Image.blend: every step in float32, and the result cut off, not rounded.
FUSIONLOADER_BOTH uint8_t blend(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<uint8_t>(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
}

// Pillow's "L" of an RGB pixel.
FUSIONLOADER_BOTH uint8_t grey_level(int red, int green, int blue) {
  return static_cast<uint8_t>((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16);
}

// The rounded mean of the levels of a plane.
FUSIONLOADER_BOTH int mean_level(uint64_t sum, uint64_t count) {
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(count) + 0.5);
}

// The smoothed level of Pillow's ImageFilter.SMOOTH from the sum of all nine levels and 4 x the
// middle one, plus 6. Pillow adds up the products in float32 and rounds; no sum comes near a tie,
// since 13 is odd, so whole numbers give the same. 20165 / 2^18 stands for 1 / 13.
FUSIONLOADER_BOTH uint8_t smooth_level(uint16_t sum_and_half) {
  return static_cast<uint8_t>((static_cast<uint32_t>(sum_and_half) * 20165u >> 16) >> 2);
}

// Pillow's ImageOps.autocontrast without cut-off; `least` is below `most`.
struct Stretching {
  double scale, offset;
};
FUSIONLOADER_BOTH Stretching stretching(int least, int most) {
  const double scale = 255.0 / (most - least);
  return {scale, -least * scale};
}
FUSIONLOADER_BOTH uint8_t stretched_level(int level, const Stretching& by) {
  return static_cast<uint8_t>(clamped(static_cast<int>(level * by.scale + by.offset), 0, 255));
}

// Pillow's ImageOps.equalize: `last` is the count of the highest level that occurs, and `passed`
// begins with half a step and grows by the counts of the levels below. No step, no change.
template <class Count>
FUSIONLOADER_BOTH Count equalizing_step(Count total, Count last) {
  return (total - last) / 255;
}
template <class Count>
FUSIONLOADER_BOTH uint8_t equalized_level(Count passed, Count step) {
  const Count level = passed / step;
  return static_cast<uint8_t>(level < 255 ? level : 255);
}

}  // namespace fusionloader
