#pragma once
// The two passes of a resize, on rows of 8-bit pixels.
//
// Arithmetic of every kernel: sum of pixel * weight over the taps, weights with 22 fractional bits,
// plus one half, shifted right arithmetically, clipped to 0..255: Pillow's, exactly. The sums fit
// 32 bits, as in Pillow.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "resize/weights.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Bytes that kernels may read past the last pixel of a source row, and write past the last pixel of
// a plane's row.
constexpr size_t row_slack = 64;

// The horizontal weights in the order in which vector kernels want them: per output, `groups` of
// four taps, each 32 int16: sixteen upper halves (weight >> 11), sixteen lower ones (weight & 2047),
// laid out as the products of pixel pairs are (see the AVX2 kernel).
struct HorizontalTaps {
  int outputs = 0;
  int groups = 0;
  const Weights* weights = nullptr;
  int origin = 0;  // the input pixel at which source rows start
  std::vector<uint32_t> offsets;  // bytes from the row's start to the output's first tap
  std::vector<int16_t> packed;
};

struct ResizeKernels {
  // Fills `taps` for `horizontal`; `weights` must outlive it.
  void (*prepare)(const Weights& weights, int origin, HorizontalTaps& taps);
  // One row of RGBX pixels to three planes `plane` bytes apart.
  void (*horizontal)(const uint8_t* row, const HorizontalTaps& taps, uint8_t* out, size_t plane);
  // `size` bytes of `count` rows to one row; may write up to row_slack bytes more.
  void (*vertical)(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out,
                   size_t size);
};

const ResizeKernels& resize_kernels(SimdLevel level);

// One row of RGBX pixels to three planes, unscaled; from right to left if `mirrored`.
void split_planes(const uint8_t* row, int width, bool mirrored, uint8_t* out, size_t plane);

extern const ResizeKernels scalar_kernels;
#if defined(__x86_64__)
extern const ResizeKernels avx2_kernels;
extern const ResizeKernels avx512_kernels;
#endif

// Used by the vector kernels.
void prepare_packed(const Weights& weights, int origin, HorizontalTaps& taps);

}  // namespace fusionloader
