#pragma once
// Between planes and pixels whose channels lie side by side: RGB, or RGBX with a byte to spare.
#include <cstddef>
#include <cstdint>

#include "simd/level.hpp"

namespace fusionloader {

// None touches a byte beyond its `width` pixels.
struct InterleaveKernels {
  // Three planes to RGB.
  void (*join_rgb)(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t width,
                   uint8_t* out);
  // Three planes, which may be the same, to RGBX.
  void (*join_rgbx)(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t width,
                    uint8_t* out);
  // RGBX to RGB, and to BGR.
  void (*pack_rgb)(const uint8_t* row, size_t width, uint8_t* out);
  void (*pack_bgr)(const uint8_t* row, size_t width, uint8_t* out);
  // RGB to RGBX.
  void (*spread_rgb)(const uint8_t* row, size_t width, uint8_t* out);
  // RGBX from right to left.
  void (*mirror)(const uint8_t* row, size_t width, uint8_t* out);
};

const InterleaveKernels& interleave_kernels(SimdLevel level);

extern const InterleaveKernels scalar_interleave;
#if defined(__x86_64__)
extern const InterleaveKernels avx2_interleave;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
extern const InterleaveKernels interleave_128;
#endif

}  // namespace fusionloader
