#pragma once
// From a filtered row of a PNG back to its pixels.
//
// A byte of a row is what the encoder's filter left: the difference, modulo 256, between the sample
// and what the filter predicts of the sample to the left, the one above and the one above that to
// the left. Outside of the image all are 0.
#include <cstddef>
#include <cstdint>

#include "simd/level.hpp"

namespace fusionloader {

constexpr int filter_count = 5;  // none, sub, up, average, paeth

// Bytes that kernels may read past the end of a filtered row.
constexpr size_t filtered_slack = 16;

// `width` pixels of `filtered` to RGBX or RGBA in `out`, `above` being the row above as it came
// out. Reads up to filtered_slack bytes more of `filtered`; of `above` as many, and may write as
// many behind `out`. The X is 255.
using UnfilterRow = void (*)(const uint8_t* filtered, const uint8_t* above, size_t width,
                             uint8_t* out);

struct UnfilterKernels {
  UnfilterRow rgb[filter_count], rgba[filter_count];
};

const UnfilterKernels& unfilter_kernels(SimdLevel level);

// Rows of one sample a pixel, to as many bytes. Nothing is read or written behind them.
void unfilter_bytes(int filter, const uint8_t* filtered, const uint8_t* above, size_t width,
                    uint8_t* out);

extern const UnfilterKernels scalar_unfilter;
#if defined(__x86_64__) || defined(__aarch64__)
extern const UnfilterKernels unfilter_128;
#endif

}  // namespace fusionloader
