#pragma once
// Kernels that take one row of a result from anywhere in an image. They work on packed pixels: one
// in 32 bits, red lowest (grey in all three places), so that a pixel is one load.
#include <cstddef>
#include <cstdint>

#include "arithmetic/points.hpp"
#include "arithmetic/sampling.hpp"
#include "simd/level.hpp"

namespace fusionloader {

using Sampler = void (*)(const PackedImage& image, const double* xs, const double* ys, size_t count,
                         uint32_t fill, uint32_t* out);

struct SamplingKernels {
  // `planes` are one or three; may read up to Planes::slack past each.
  void (*pack)(const uint8_t* const* planes, int channels, size_t size, uint32_t* out);
  // May write up to 15 bytes past each row.
  void (*split)(const uint32_t* row, size_t width, int channels, uint8_t* const* planes);
  // xs and ys of row `y`, for `count` pixels
  void (*affine)(const double* matrix, int y, size_t count, double* xs, double* ys);
  void (*perspective)(const double* coefficients, int y, size_t count, double* xs, double* ys);
  void (*fixed)(const PackedImage& image, FixedLine line, size_t count, uint32_t fill,
                uint32_t* out);
  Sampler nearest, bilinear, bicubic;
};

const SamplingKernels& sampling_kernels(SimdLevel level);

extern const SamplingKernels scalar_sampling;
#if defined(__x86_64__)
extern const SamplingKernels avx2_sampling;
extern const SamplingKernels avx512_sampling;
#endif

}  // namespace fusionloader
