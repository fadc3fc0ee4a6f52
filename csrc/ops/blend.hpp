#pragma once
// Blends of two images, which brightness, contrast, saturation and sharpness are made of.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "arithmetic/levels.hpp"
#include "ops/lookup.hpp"
#include "ops/rounding.hpp"

namespace fusionloader {

// Of Pillow's blend: larger ones give nothing new, and an infinite one no number where levels are
// equal. Throws std::invalid_argument for what is not a number.
inline float blend_factor(double factor) {
  if (std::isnan(factor)) throw std::invalid_argument("a factor must be a number");
  return static_cast<float>(std::clamp(factor, -1e6, 1e6));
}

// A factor, and how the blends by it are rounded: Pillow's Image.blend, or torchvision's on
// tensors.
struct Blending {
  enum class Way : uint8_t { pillow, rounded, fused, change };

  // Throws std::invalid_argument for a factor that is not a number.
  explicit Blending(double by, Rounding rounding = Rounding::pillow, bool smoothed = false);

  Rounding rounding;
  Way way;
  float factor, rest;
};

// What becomes of each level when blended from the level `from`, which is whole for Pillow.
LevelTable blend_table(float from, const Blending& by, SimdLevel level);

// Blends level by level; may read and write up to 63 bytes behind `count`. `out` may be one of the
// others.
void blend_levels(SimdLevel level, const uint8_t* from, const uint8_t* to, uint8_t* out,
                  size_t count, const Blending& by);

// Mean of the grey levels of an image of 1 or 3 channels: rounded for Pillow.
float mean_of_grey(const Planes& image, Rounding rounding, SimdLevel level);

// Replaces the first of 3 channels by the grey levels.
void red_to_grey(Planes& image, Rounding rounding, SimdLevel level);

// Blends every channel from the image's grey levels.
void blend_from_grey(Planes& image, const Blending& by, SimdLevel level);

// Blends from the image smoothed by a 3 x 3 kernel (1 1 1, 1 5 1, 1 1 1) / 13; the outermost pixels
// are not smoothed. `rows` is scratch.
void blend_from_smooth(Planes& image, const Blending& by, std::vector<uint8_t>& rows,
                       SimdLevel level);

// blend_levels for one level each. The factor is within +-1e6: more than that gives nothing new,
// but would leave the range of whole numbers.
void blend_levels_avx2(const uint8_t* from, const uint8_t* to, uint8_t* out, size_t count,
                       float factor);
void blend_levels_avx512(const uint8_t* from, const uint8_t* to, uint8_t* out, size_t count,
                         float factor);

}  // namespace fusionloader
