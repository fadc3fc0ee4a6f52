// The scalar reference, and the choice of kernels.
#include "resize/kernels.hpp"

#include <algorithm>

namespace fusionloader {
namespace {

void prepare_scalar(const Weights& weights, int origin, HorizontalTaps& taps) {
  taps.outputs = weights.outputs();
  taps.weights = &weights;
  taps.origin = origin;
}

void horizontal_scalar(const uint8_t* const* rows, const HorizontalTaps& taps,
                       uint8_t* const* out) {
  for (int row = 0; row < rows_at_once; ++row) {
    for (int x = 0; x < taps.outputs; ++x) {
      const uint8_t* pixel =
          rows[row] + static_cast<ptrdiff_t>(taps.weights->first(x) - taps.origin) * 4;
      const int32_t* weight = taps.weights->taps(x);
      int32_t sums[3] = {half_a_level, half_a_level, half_a_level};
      for (int t = 0; t < taps.weights->count(x); ++t)
        for (int channel = 0; channel < 3; ++channel)
          sums[channel] += pixel[4 * t + channel] * weight[t];
      for (int channel = 0; channel < 3; ++channel)
        out[row][4 * x + channel] = rounded_level(sums[channel]);
    }
  }
}

// A strip of columns at a time: so many sums stay in the cache, and rows are read as they lie. An
// image of a million rows would else be read with a cache miss a byte.
void vertical_scalar(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out,
                     size_t size) {
  constexpr size_t strip = 512;
  int32_t sums[strip];
  for (size_t begin = 0; begin < size; begin += strip) {
    const size_t columns = std::min(strip, size - begin);
    std::fill_n(sums, columns, half_a_level);
    for (int t = 0; t < count; ++t) {
      const uint8_t* row = rows[t] + begin;
      for (size_t i = 0; i < columns; ++i) sums[i] += row[i] * weights[t];
    }
    for (size_t i = 0; i < columns; ++i) out[begin + i] = rounded_level(sums[i]);
  }
}

void split_scalar(const uint8_t* row, size_t width, uint8_t* out, size_t plane) {
  for (size_t x = 0; x < width; ++x)
    for (size_t channel = 0; channel < 3; ++channel)
      out[channel * plane + x] = row[4 * x + channel];
}

}  // namespace

const ResizeKernels scalar_kernels{prepare_scalar, horizontal_scalar, vertical_scalar,
                                   split_scalar};

const ResizeKernels& resize_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return avx512_kernels;
  if (level == SimdLevel::avx2) return avx2_kernels;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (level == SimdLevel::bits128) return kernels_128;
#endif
  (void)level;
  return scalar_kernels;
}

void prepare_whole(const Weights& weights, int origin, HorizontalTaps& taps) {
  taps.outputs = weights.outputs();
  taps.weights = &weights;
  taps.origin = origin;
  taps.groups = (weights.most_taps() + 3) / 4;
  // Vector kernels work on four outputs at a time: those past the end have zero weights.
  const size_t padded = (static_cast<size_t>(taps.outputs) + 3) / 4 * 4;
  const auto groups = static_cast<size_t>(taps.groups);
  taps.offsets.assign(padded, 0);
  taps.packed.assign(padded * groups, TapGroup{});
  // Near the right edge whole groups would reach far past the row: they start further left there,
  // with zero weights, so that at most three pixels past the row are read.
  const int last_start = std::max(weights.inputs_end() - 4 * taps.groups, origin);
  for (int x = 0; x < taps.outputs; ++x) {
    const auto output = static_cast<size_t>(x);
    const int start = std::min(weights.first(x), last_start);
    taps.offsets[output] = static_cast<uint32_t>(start - origin) * 4;
    const int32_t* weight = weights.taps(x);
    for (int t = 0; t < weights.count(x); ++t) {
      const auto tap = static_cast<size_t>(weights.first(x) - start + t);
      taps.packed[output * groups + tap / 4].words[tap % 4] = weight[t];
    }
  }
}

void prepare_pairs(const Weights& weights, int origin, HorizontalTaps& taps) {
  prepare_whole(weights, origin, taps);
  for (TapGroup& group : taps.packed) {
    const SplitPair first = split_pair(group.words[0], group.words[1]);
    const SplitPair last = split_pair(group.words[2], group.words[3]);
    group = {{first.upper, last.upper, first.lower, last.lower}};
  }
}

}  // namespace fusionloader
