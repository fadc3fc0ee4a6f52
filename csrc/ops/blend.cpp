#include "ops/blend.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/float_sum.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

constexpr size_t block = 64;

size_t whole_blocks(size_t count) { return (count + block - 1) / block * block; }

// Macros, as a function passed by pointer would not be inlined into every instruction set.
#define FUSIONLOADER_GREY_LOOP(name, one)                                             \
  template <int>                                                                      \
  FUSIONLOADER_INLINE void name##_loop(const uint8_t* red, const uint8_t* green,      \
                                       const uint8_t* blue, uint8_t* __restrict grey, \
                                       size_t count) {                                \
    for (size_t i = 0; i < count; ++i) grey[i] = one(red[i], green[i], blue[i]);      \
  }                                                                                   \
  FUSIONLOADER_PER_LEVEL(name, name##_loop)

// `out` may be one of the others.
#define FUSIONLOADER_BLEND_LOOP(name, one)                                                   \
  template <int>                                                                             \
  FUSIONLOADER_INLINE void name##_loop(const uint8_t* from, const uint8_t* to, uint8_t* out, \
                                       size_t count, float factor, float rest) {             \
    for (size_t begin = 0; begin < count; begin += block) {                                  \
      uint8_t made[block];                                                                   \
      for (size_t i = 0; i < block; ++i)                                                     \
        made[i] = one(from[begin + i], to[begin + i], factor, rest);                         \
      std::memcpy(out + begin, made, block);                                                 \
    }                                                                                        \
  }                                                                                          \
  FUSIONLOADER_PER_LEVEL(name, name##_loop)

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
FUSIONLOADER_INLINE void smooth_row_loop(const uint8_t* above, const uint8_t* here,
                                         const uint8_t* below, uint16_t* __restrict columns,
                                         uint8_t* __restrict out, size_t count) {
  for (size_t i = 0; i < count + 2; ++i)
    columns[i] = static_cast<uint16_t>(above[i] + here[i] + below[i]);
  for (size_t i = 0; i < count; ++i) {
    const auto sum =
        static_cast<uint16_t>(columns[i] + columns[i + 1] + columns[i + 2] + 4 * here[i + 1] + 6);
    out[i] = smooth_level(sum);
  }
}

FUSIONLOADER_GREY_LOOP(grey, grey_level)
FUSIONLOADER_GREY_LOOP(tensor_grey, grey_rounded)
FUSIONLOADER_GREY_LOOP(tensor_grey_v2, grey_fused)
FUSIONLOADER_BLEND_LOOP(blend_each_rounded, blend_rounded)
FUSIONLOADER_BLEND_LOOP(blend_each_fused, blend_fused)
FUSIONLOADER_BLEND_LOOP(blend_each_change, blend_change)
FUSIONLOADER_PER_LEVEL(plain_sum, plain_sum_loop)
FUSIONLOADER_PER_LEVEL(grey_sum, sum_loop)
FUSIONLOADER_PER_LEVEL(smooth_row, smooth_row_loop)

// Few enough to stay in the first-level cache.
constexpr size_t grey_at_once = 4096;

// Returns how many levels it wrote, in whole blocks.
size_t grey_block(const Planes& image, size_t begin, Rounding rounding, uint8_t* levels,
                  SimdLevel level) {
  const size_t count = std::min(grey_at_once, image.padded_size() - begin);
  const uint8_t *red = image.plane(0) + begin, *green = image.plane(1) + begin;
  const uint8_t* blue = image.plane(2) + begin;
  if (rounding == Rounding::pillow)
    grey(level, red, green, blue, levels, count);
  else if (rounding == Rounding::torch_v1)
    tensor_grey(level, red, green, blue, levels, count);
  else
    tensor_grey_v2(level, red, green, blue, levels, count);
  return count;
}

uint64_t sum_of_grey(const Planes& image, SimdLevel level) {
  if (image.channels() == 1) return plain_sum(level, image.plane(0), image.size());
  return grey_sum(level, image.plane(0), image.plane(1), image.plane(2), image.size());
}

Blending::Way way_of(Rounding rounding, bool smoothed) {
  if (rounding == Rounding::pillow) return Blending::Way::pillow;
  if (rounding == Rounding::torch_v1) return Blending::Way::rounded;
  return smoothed ? Blending::Way::change : Blending::Way::fused;
}

// A factor that leaves room for products in float32.
double possible_factor(double factor) {
  blend_factor(factor);
  return std::clamp(factor, -1e30, 1e30);
}

}  // namespace

Blending::Blending(double by, Rounding as, bool smoothed)
    : rounding(as),
      way(way_of(as, smoothed)),
      factor(as == Rounding::pillow ? blend_factor(by) : static_cast<float>(possible_factor(by))),
      rest(static_cast<float>(1.0 - possible_factor(by))) {}

void blend_levels(SimdLevel level, const uint8_t* from, const uint8_t* to, uint8_t* out,
                  size_t count, const Blending& by) {
  const float factor = by.factor;
  if (by.way == Blending::Way::rounded)
    return blend_each_rounded(level, from, to, out, count, factor, by.rest);
  if (by.way == Blending::Way::fused)
    return blend_each_fused(level, from, to, out, count, factor, by.rest);
  if (by.way == Blending::Way::change)
    return blend_each_change(level, from, to, out, count, factor, by.rest);
#if defined(__x86_64__)
  const float moderate = std::clamp(factor, -1e6f, 1e6f);
  if (level == SimdLevel::avx512) return blend_levels_avx512(from, to, out, count, moderate);
  if (level == SimdLevel::avx2) return blend_levels_avx2(from, to, out, count, moderate);
#endif
  (void)level;
  for (size_t i = 0; i < count; ++i) out[i] = blend(from[i], to[i], factor);
}

LevelTable blend_table(float from, const Blending& by, SimdLevel level) {
  LevelTable one, all, table;
  if (by.way != Blending::Way::pillow) {
    const auto blend_one = by.way == Blending::Way::rounded ? blend_rounded : blend_fused;
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = blend_one(from, static_cast<float>(i), by.factor, by.rest);
    return table;
  }
  one.fill(static_cast<uint8_t>(from));
  std::iota(all.begin(), all.end(), uint8_t{0});
  blend_levels(level, one.data(), all.data(), table.data(), table.size(), by);
  return table;
}

float mean_of_grey(const Planes& image, Rounding rounding, SimdLevel level) {
  if (rounding == Rounding::pillow)
    return static_cast<float>(mean_level(sum_of_grey(image, level), image.size()));
  FloatSum sum(image.size());
  uint8_t levels[grey_at_once];
  for (size_t begin = 0; begin < image.size(); begin += grey_at_once) {
    const size_t count = std::min(grey_at_once, image.size() - begin);
    if (image.channels() == 3) grey_block(image, begin, rounding, levels, level);
    sum.add(image.channels() == 3 ? levels : image.plane(0) + begin, count, level);
  }
  return sum.total() / static_cast<float>(image.size());
}

void red_to_grey(Planes& image, Rounding rounding, SimdLevel level) {
  uint8_t levels[grey_at_once];
  for (size_t begin = 0; begin < image.size(); begin += grey_at_once) {
    const size_t count = grey_block(image, begin, rounding, levels, level);
    std::memcpy(image.plane(0) + begin, levels, count);
  }
}

void blend_from_grey(Planes& image, const Blending& by, SimdLevel level) {
  uint8_t levels[grey_at_once];
  for (size_t begin = 0; begin < image.size(); begin += grey_at_once) {
    const size_t count = grey_block(image, begin, by.rounding, levels, level);
    for (int channel = 0; channel < 3; ++channel) {
      uint8_t* plane = image.plane(channel) + begin;
      blend_levels(level, levels, plane, plane, count, by);
    }
  }
}

// torchvision's older function blends these pixels too, with themselves.
void blend_border(uint8_t* plane, size_t width, size_t count, const Blending& by) {
  const auto blend_one = [&](uint8_t& level) {
    level = blend_rounded(level, level, by.factor, by.rest);
  };
  for (size_t x = 0; x < width; ++x) {
    blend_one(plane[x]);
    blend_one(plane[count - width + x]);
  }
  for (size_t row = width; row < count - width; row += width) {
    blend_one(plane[row]);
    blend_one(plane[row + width - 1]);
  }
}

void blend_from_smooth(Planes& image, const Blending& by, std::vector<uint8_t>& rows,
                       SimdLevel level) {
  if (image.width() < 3 || image.height() < 3) return;
  const auto width = static_cast<size_t>(image.width()), inner = width - 2;
  const size_t padded = whole_blocks(width) + 2 * block;
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
      const uint8_t* const before = above;
      const uint8_t* const now = here;
      smooth_row(level, before, now, below, columns, out, whole_blocks(inner));
      blend_levels(level, out, now + 1, out, inner, by);
      std::memcpy(row + 1, out, inner);
      std::swap(above, here);
    }
    if (by.way == Blending::Way::rounded)
      blend_border(image.plane(channel), width, image.size(), by);
  }
}

}  // namespace fusionloader
