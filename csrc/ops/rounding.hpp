#pragma once
// Levels of uint8 tensors where torchvision gives others than for Pillow images: its arithmetic, in
// float32. Every step is rounded, but for the sums that torch adds with a factor (`alpha`).
#include <cstdint>

#include "simd/inline.hpp"

namespace fusionloader {

// Whose levels an operation gives: those of Pillow images, or of tensors, where torchvision's older
// transforms round otherwise than v2's. In an interleaved tensor the channels of a pixel lie side
// by side, as in those made of Pillow images: v2's contrast rounds its last elements otherwise.
// A bilinear warp without a fill is `torch_unfilled`: the same in both. Where the library that
// multiplies for torch has no fused multiply-adds for the processor, those of warps are `unfused`:
// the products of the grid are rounded, too.
enum class Rounding : uint8_t {
  pillow,
  torch_v1,
  torch_v2,
  torch_v2_interleaved,
  torch_unfilled,
  torch_v1_unfused,
  torch_v2_unfused,
  torch_unfilled_unfused
};

constexpr bool is_v1(Rounding rounding) {
  return rounding == Rounding::torch_v1 || rounding == Rounding::torch_v1_unfused;
}
constexpr bool is_v2(Rounding rounding) {
  return rounding == Rounding::torch_v2 || rounding == Rounding::torch_v2_unfused;
}
constexpr bool is_unfilled(Rounding rounding) {
  return rounding == Rounding::torch_unfilled || rounding == Rounding::torch_unfilled_unfused;
}
// The last ones.
constexpr bool is_unfused(Rounding rounding) { return rounding >= Rounding::torch_v1_unfused; }

// Clamped, and cut off as by torch's cast.
FUSIONLOADER_INLINE uint8_t cut_off(float value) {
  const float positive = value < 0.0f ? 0.0f : value;
  return static_cast<uint8_t>(static_cast<int>(positive > 255.0f ? 255.0f : positive));
}

// rgb_to_grayscale; no sum of levels is above 255.
FUSIONLOADER_INLINE float grey_sum_rounded(float red, float green, float blue) {
  return 0.2989f * red + 0.587f * green + 0.114f * blue;
}
FUSIONLOADER_INLINE float grey_sum_fused(float red, float green, float blue) {
  const float both = __builtin_fmaf(0.587f, green, 0.2989f * red);
  return __builtin_fmaf(0.114f, blue, both);
}
FUSIONLOADER_INLINE uint8_t grey_rounded(float red, float green, float blue) {
  return static_cast<uint8_t>(static_cast<int>(grey_sum_rounded(red, green, blue)));
}
FUSIONLOADER_INLINE uint8_t grey_fused(float red, float green, float blue) {
  return static_cast<uint8_t>(static_cast<int>(grey_sum_fused(red, green, blue)));
}

// _blend, where `rest` is 1 - factor; the last is that of v2's adjust_sharpness.
FUSIONLOADER_INLINE uint8_t blend_rounded(float from, float to, float factor, float rest) {
  return cut_off(factor * to + rest * from);
}
FUSIONLOADER_INLINE uint8_t blend_fused(float from, float to, float factor, float rest) {
  return cut_off(__builtin_fmaf(rest, from, factor * to));
}
FUSIONLOADER_INLINE uint8_t blend_change(float from, float to, float, float rest) {
  return cut_off(__builtin_fmaf(rest, from - to, to));
}

}  // namespace fusionloader
