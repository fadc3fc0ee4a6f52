#include "ops/blend.hpp"

#include <algorithm>
#include <cstring>

#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

constexpr size_t block = 64;

size_t whole_blocks(size_t count) { return (count + block - 1) / block * block; }

FUSIONLOADER_INLINE uint8_t grey_level(int red, int green, int blue) {
  return static_cast<uint8_t>((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16);
}

FUSIONLOADER_INLINE uint8_t blend_float(float from, float to, float factor) {
  const float value = from + factor * (to - from);
  const float above = value > 0.0f ? value : 0.0f;
  return static_cast<uint8_t>(static_cast<int>(above < 255.0f ? above : 255.0f));
}

template <int>
FUSIONLOADER_INLINE void grey_loop(uint8_t* __restrict red, const uint8_t* green,
                                   const uint8_t* blue, size_t count) {
  for (size_t i = 0; i < count; ++i) red[i] = grey_level(red[i], green[i], blue[i]);
}

template <int>
FUSIONLOADER_INLINE uint64_t plain_sum_loop(const uint8_t* levels, size_t count) {
  uint64_t sum = 0;
  constexpr size_t chunk = size_t{1} << 20;
  for (size_t begin = 0; begin < count; begin += chunk) {
    const size_t end = std::min(count, begin + chunk);
    uint32_t part = 0;
    for (size_t i = begin; i < end; ++i) part += levels[i];
    sum += part;
  }
  return sum;
}

template <int>
FUSIONLOADER_INLINE uint64_t sum_loop(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                                      size_t count) {
  uint64_t sum = 0;
  constexpr size_t chunk = size_t{1} << 20;  // whose sum fits in 32 bits
  for (size_t begin = 0; begin < count; begin += chunk) {
    const size_t end = std::min(count, begin + chunk);
    uint32_t part = 0;
    for (size_t i = begin; i < end; ++i) part += grey_level(red[i], green[i], blue[i]);
    sum += part;
  }
  return sum;
}

template <int>
FUSIONLOADER_INLINE void saturation_loop(uint8_t* __restrict red, uint8_t* __restrict green,
                                         uint8_t* __restrict blue, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) {
    const auto grey = static_cast<float>(grey_level(red[i], green[i], blue[i]));
    red[i] = blend_float(grey, red[i], factor);
    green[i] = blend_float(grey, green[i], factor);
    blue[i] = blend_float(grey, blue[i], factor);
  }
}

// Pillow adds up the 3 x 3 products in float32 and rounds; no sum comes near a tie, since 13 is
// odd, so whole numbers give the same. 20165 / 2^18 stands for 1 / 13.
template <int>
FUSIONLOADER_INLINE void sharpness_row_loop(const uint8_t* above, const uint8_t* here,
                                            const uint8_t* below, uint16_t* __restrict columns,
                                            uint8_t* __restrict out, size_t count, float factor) {
  for (size_t i = 0; i < count + 2; ++i)
    columns[i] = static_cast<uint16_t>(above[i] + here[i] + below[i]);
  for (size_t i = 0; i < count; ++i) {
    const auto sum =
        static_cast<uint16_t>(columns[i] + columns[i + 1] + columns[i + 2] + 4 * here[i + 1] + 6);
    const auto smooth = static_cast<uint16_t>((static_cast<uint32_t>(sum) * 20165u) >> 18);
    out[i] = blend_float(static_cast<float>(smooth), here[i + 1], factor);
  }
}

FUSIONLOADER_PER_LEVEL(grey, grey_loop)
FUSIONLOADER_PER_LEVEL(plain_sum, plain_sum_loop)
FUSIONLOADER_PER_LEVEL(grey_sum, sum_loop)
FUSIONLOADER_PER_LEVEL(saturate, saturation_loop)
FUSIONLOADER_PER_LEVEL(sharpen_row, sharpness_row_loop)

}  // namespace

LevelTable blend_table(int from, float factor) {
  LevelTable table;
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = blend(from, i, factor);
  return table;
}

uint64_t sum_of_grey(const Planes& image, SimdLevel level) {
  if (image.channels() == 1) return plain_sum(level, image.plane(0), image.size());
  return grey_sum(level, image.plane(0), image.plane(1), image.plane(2), image.size());
}

void red_to_grey(Planes& image, SimdLevel level) {
  const Planes& same = image;
  grey(level, image.plane(0), same.plane(1), same.plane(2), whole_blocks(image.size()));
}

void blend_from_grey(Planes& image, float factor, SimdLevel level) {
  saturate(level, image.plane(0), image.plane(1), image.plane(2), whole_blocks(image.size()),
           factor);
}

void blend_from_smooth(Planes& image, float factor, std::vector<uint8_t>& rows, SimdLevel level) {
  if (image.width() < 3 || image.height() < 3) return;
  const auto width = static_cast<size_t>(image.width()), inner = width - 2;
  const size_t padded = whole_blocks(width) + block;
  // The row before and this row as they were, and the new row.
  if (rows.size() < 5 * padded) rows.resize(5 * padded);
  uint8_t *above = rows.data(), *here = above + padded, *out = here + padded;
  auto* columns = reinterpret_cast<uint16_t*>(out + padded);
  for (int channel = 0; channel < image.channels(); ++channel) {
    uint8_t* row = image.plane(channel);
    std::memcpy(above, row, width);
    for (int y = 1; y + 1 < image.height(); ++y) {
      row += width;
      std::memcpy(here, row, width);
      const auto* below = static_cast<const uint8_t*>(row + width);
      sharpen_row(level, static_cast<const uint8_t*>(above), static_cast<const uint8_t*>(here),
                  below, columns, out, inner, factor);
      std::memcpy(row + 1, out, inner);
      std::swap(above, here);
    }
  }
}

}  // namespace fusionloader
