#pragma once
// The two passes of a resize, on rows of 8-bit pixels.
//
// Arithmetic of every kernel: sum of pixel * weight over the taps, weights with 22 fractional bits,
// plus one half, shifted right arithmetically, clipped to 0..255: Pillow's, exactly. The sums fit
// 32 bits, as in Pillow.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/rows.hpp"
#include "resize/weights.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// A weight in two parts of 16 bits, which is what x86 multiplies best: upper * 2048 + lower, lower
// in 0..2047.
constexpr int lower_bits = 11;

// Two weights, the first in the lower halves.
struct SplitPair {
  int32_t upper, lower;
};

inline SplitPair split_pair(int32_t first, int32_t second) {
  const auto joined = [](int32_t low, int32_t high) {
    const uint32_t in_front = static_cast<uint32_t>(high) << 16;
    return static_cast<int32_t>(in_front | static_cast<uint32_t>(low & 0xFFFF));
  };
  constexpr int32_t lower = (1 << lower_bits) - 1;
  return {joined(first >> lower_bits, second >> lower_bits), joined(first & lower, second & lower)};
}

// The weights of four taps: one by one, or as pairs, the uppers of both in front of the lowers.
struct TapGroup {
  int32_t words[4];
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
extern const ResizeKernels avx2_kernels;
extern const ResizeKernels avx512_kernels;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
// Wider vectors would make it no faster.
void split_planes_128(const uint8_t* row, size_t width, uint8_t* out, size_t plane);
extern const ResizeKernels kernels_128;
#endif

// Shared by the vector kernels: groups of weights one by one, and in pairs.
void prepare_whole(const Weights& weights, int origin, HorizontalTaps& taps);
void prepare_pairs(const Weights& weights, int origin, HorizontalTaps& taps);

}  // namespace fusionloader
