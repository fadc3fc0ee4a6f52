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

// Bytes that kernels may read past the last pixel of a source row, and write past the last byte of
// a row of results.
constexpr size_t row_slack = 64;

// Rows that the horizontal kernels take at once: the weights are then loaded once for all of them,
// which matters because decoding between two calls drives them out of the nearest cache.
constexpr int rows_at_once = 4;

// Weights of four taps, as pairs of int16 for 16-bit multiply-adds: tap 0 or 2 in the lower half of
// a word, tap 1 or 3 in the upper. A weight is upper * 2048 + lower, lower in 0..2047.
struct TapGroup {
  int32_t upper_01, upper_23, lower_01, lower_23;
};

struct HorizontalTaps {
  int outputs = 0;
  int groups = 0;  // per output
  const Weights* weights = nullptr;
  int origin = 0;                 // the input pixel at which source rows start
  std::vector<uint32_t> offsets;  // bytes from the row's start to the output's first tap
  std::vector<TapGroup> packed;

  const TapGroup* output(size_t x) const { return &packed[x * static_cast<size_t>(groups)]; }
};

struct ResizeKernels {
  // Fills `taps` for `horizontal`; `weights` must outlive it.
  void (*prepare)(const Weights& weights, int origin, HorizontalTaps& taps);
  // `rows_at_once` rows of RGBX pixels to as many; may write up to 3 pixels past the last.
  void (*horizontal)(const uint8_t* const* rows, const HorizontalTaps& taps, uint8_t* const* out);
  // `size` bytes of `count` rows to one row; may write up to row_slack bytes more.
  void (*vertical)(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out,
                   size_t size);
  // One row of RGBX pixels to three planes `plane` bytes apart; may write up to 31 bytes past each.
  void (*split)(const uint8_t* row, size_t width, uint8_t* out, size_t plane);
};

const ResizeKernels& resize_kernels(SimdLevel level);

extern const ResizeKernels scalar_kernels;
#if defined(__x86_64__)
void split_planes_avx2(const uint8_t* row, size_t width, uint8_t* out, size_t plane);
extern const ResizeKernels avx2_kernels;
extern const ResizeKernels avx512_kernels;
#endif

// Shared by the vector kernels.
void prepare_packed(const Weights& weights, int origin, HorizontalTaps& taps);

}  // namespace fusionloader
