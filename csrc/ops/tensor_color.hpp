#pragma once
// Color operations of torchvision on tensors, with all images of a tensor in one pass: the same
// elements as torch computes one operation after the other. See rounding.hpp for what is rounded.
// Elements are uint8_t, or float, which is 0 to 1 where torchvision says so.
#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/rounding.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Images of three channels, one after the other.
struct TensorShape {
  size_t images, height, width;
  bool interleaved;  // whether the channels of a pixel lie side by side

  size_t pixels() const { return height * width; }
  size_t elements() const { return 3 * pixels(); }  // of an image
};

// A factor, and 1 minus the factor, each rounded from float64 as torch rounds them.
struct TensorFactor {
  explicit TensorFactor(double by)
      : factor(static_cast<float>(by)), rest(static_cast<float>(1.0 - by)) {}
  float factor, rest;
};

// Brightness of v2, of `count` elements.
template <class Element>
void scale_elements(const Element* in, Element* out, size_t count, float factor, SimdLevel level);

// rgb_to_grayscale: one channel for each image. Those of uint8_t are whole, as float too.
template <class Element, class Grey>
void grey_of_tensor(const Element* in, Grey* out, const TensorShape& shape, bool fused,
                    SimdLevel level);

// Blends each image from its own level, `from[image]`: contrast, and v1's brightness. The last
// elements are rounded otherwise: those of an interleaved tensor also where these are planar, if
// `ends_interleaved`.
template <class Element>
void blend_from_levels(const Element* in, const float* from, Element* out, const TensorShape& shape,
                       const TensorFactor& by, bool fused, SimdLevel level,
                       bool ends_interleaved = false);

// Blends each pixel from its grey: saturation.
template <class Element>
void blend_from_pixels(const Element* in, Element* out, const TensorShape& shape,
                       const TensorFactor& by, bool fused, SimdLevel level);

// Blends from the smoothed image: sharpness. Images have three rows and columns or more.
template <class Element>
void blend_from_smoothed(const Element* in, Element* out, const TensorShape& shape,
                         const TensorFactor& by, bool fused, SimdLevel level);

// adjust_hue; the result is planar. Returns false if a float is not finite, or beyond 1e38: torch
// makes something else of those pixels.
template <class Element>
bool turn_hue(const Element* in, Element* out, const TensorShape& shape, float turn, bool v2,
              SimdLevel level);

// Of `count` elements: invert and solarize.
void invert_floats(const float* in, float* out, size_t count, SimdLevel level);
template <class Element>
void solarize_elements(const Element* in, Element* out, size_t count, double threshold,
                       SimdLevel level);

// autocontrast. False where torch may give zeros the other sign.
template <class Element>
bool stretch_tensor(const Element* in, Element* out, const TensorShape& shape, bool v2,
                    SimdLevel level);

// equalize; the result is planar.
void equalize_tensor(const uint8_t* in, uint8_t* out, const TensorShape& shape, SimdLevel level);

// to_dtype(float32, scale=True) of v2, of `count` levels.
void scale_levels(const uint8_t* in, float* out, size_t count, SimdLevel level);

// normalize: (element - mean) / deviation.
void normalize_tensor(const float* in, float* out, const TensorShape& shape,
                      const std::array<float, 3>& mean, const std::array<float, 3>& deviation,
                      SimdLevel level);

}  // namespace fusionloader
