#pragma once
// Rows of samples to rows of pixels: what libjpeg calls fancy upsampling, and color conversion.
//
// Arithmetic of every kernel: libjpeg's. A chroma sample at half the resolution counts three
// quarters, its neighbour on the pixel's side one; where both axes are halved both are weighed
// before anything is rounded. Halves are rounded down and up by turns. Colors: R = Y + 1.402 Cr,
// G = Y - 0.34414 Cb - 0.71414 Cr, B = Y + 1.772 Cb (Cb, Cr less 128), factors with 16 fractional
// bits, the sum of both chroma terms rounded to nearest, the result clipped.
#include <cstddef>
#include <cstdint>

#include "simd/level.hpp"

namespace fusionloader {

// Samples that kernels may read behind those they are given, and write behind their results.
constexpr size_t sample_slack = 64;

struct SampleKernels {
  // `count` samples to twice as many; from[-1] and from[count] are read.
  void (*widen)(const uint8_t* from, size_t count, uint8_t* out);
  // Between rows: three quarters of `near`, one of `far`, which lies below it or above.
  void (*blend)(const uint8_t* near, const uint8_t* far, bool far_is_below, size_t count,
                uint8_t* out);
  // Both.
  void (*blend_and_widen)(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out);
  // Pixels of four bytes, the last of which means nothing.
  void (*to_rgbx)(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count,
                  uint8_t* out);
  void (*grey_to_rgbx)(const uint8_t* y, size_t count, uint8_t* out);
};

const SampleKernels& sample_kernels(SimdLevel level);

extern const SampleKernels scalar_sample_kernels;
#if defined(__x86_64__) || defined(__aarch64__)
extern const SampleKernels sample_kernels_128;
#endif
#if defined(__x86_64__)
extern const SampleKernels avx2_sample_kernels;
#endif

// What is left of the factors above when whole multiples of 65536 are taken out: red adds Cr, blue
// twice Cb, green subtracts Cr. The rest fits 16 bits.
namespace color {
constexpr int red_cr = 91881 - 65536, blue_cb = 116130 - 2 * 65536;
constexpr int green_cb = -22554, green_cr = 65536 - 46802;
}  // namespace color

}  // namespace fusionloader
