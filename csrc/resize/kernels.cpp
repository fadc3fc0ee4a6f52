// The scalar reference, and the choice of kernels.
#include "resize/kernels.hpp"

#include <algorithm>

namespace fusionloader {
namespace {

constexpr int32_t half = 1 << (weight_bits - 1);

uint8_t clip(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

void prepare_scalar(const Weights& weights, int origin, HorizontalTaps& taps) {
  taps.outputs = weights.outputs();
  taps.weights = &weights;
  taps.origin = origin;
}

void horizontal_scalar(const uint8_t* row, const HorizontalTaps& taps, uint8_t* out, size_t plane) {
  for (int x = 0; x < taps.outputs; ++x) {
    const uint8_t* pixel = row + static_cast<ptrdiff_t>(taps.weights->first(x) - taps.origin) * 4;
    const int32_t* weight = taps.weights->taps(x);
    int32_t red = half, green = half, blue = half;
    for (int t = 0; t < taps.weights->count(x); ++t) {
      red += pixel[4 * t] * weight[t];
      green += pixel[4 * t + 1] * weight[t];
      blue += pixel[4 * t + 2] * weight[t];
    }
    out[x] = clip(red);
    out[plane + static_cast<size_t>(x)] = clip(green);
    out[2 * plane + static_cast<size_t>(x)] = clip(blue);
  }
}

void vertical_scalar(const uint8_t* const* rows, const int32_t* weights, int count, uint8_t* out,
                     size_t size) {
  for (size_t i = 0; i < size; ++i) {
    int32_t sum = half;
    for (int t = 0; t < count; ++t) sum += rows[t][i] * weights[t];
    out[i] = clip(sum);
  }
}

}  // namespace

const ResizeKernels scalar_kernels{prepare_scalar, horizontal_scalar, vertical_scalar};

const ResizeKernels& resize_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return avx512_kernels;
  if (level == SimdLevel::avx2) return avx2_kernels;
#endif
  (void)level;
  return scalar_kernels;
}

void prepare_packed(const Weights& weights, int origin, HorizontalTaps& taps) {
  taps.outputs = weights.outputs();
  taps.weights = &weights;
  taps.origin = origin;
  taps.groups = (weights.most_taps() + 3) / 4;
  // Vector kernels work on several outputs at a time: those past the end have zero weights.
  const size_t padded = (static_cast<size_t>(taps.outputs) + 7) / 8 * 8;
  const size_t group_size = 32, groups = static_cast<size_t>(taps.groups);
  taps.offsets.assign(padded, 0);
  taps.packed.assign(padded * groups * group_size, 0);
  // Near the right edge whole groups would reach far past the row: they start further left there,
  // with zero weights, so that at most three pixels past the row are read.
  const int last_start = std::max(weights.inputs_end() - 4 * taps.groups, origin);
  for (int x = 0; x < taps.outputs; ++x) {
    const auto output = static_cast<size_t>(x);
    const int start = std::min(weights.first(x), last_start);
    taps.offsets[output] = static_cast<uint32_t>(start - origin) * 4;
    const int32_t* weight = weights.taps(x);
    for (int t = 0; t < weights.count(x); ++t) {
      const auto upper = static_cast<int16_t>(weight[t] >> 11);
      const auto lower = static_cast<int16_t>(weight[t] & 2047);
      const auto tap = static_cast<size_t>(weights.first(x) - start + t);
      // Pairs of taps sit side by side, eight int16 to a pair: R R, G G, B B, unused.
      int16_t* slot = &taps.packed[(output * groups + tap / 4) * group_size] + (tap / 2 % 2) * 8 + tap % 2;
      for (size_t channel = 0; channel < 3; ++channel) {
        slot[2 * channel] = upper;
        slot[16 + 2 * channel] = lower;
      }
    }
  }
}

void split_planes(const uint8_t* row, int width, bool mirrored, uint8_t* out, size_t plane) {
  const auto count = static_cast<size_t>(width);
  uint8_t *red = out, *green = out + plane, *blue = out + 2 * plane;
  if (mirrored) {
    for (size_t x = 0; x < count; ++x) {
      const uint8_t* pixel = row + (count - 1 - x) * 4;
      red[x] = pixel[0];
      green[x] = pixel[1];
      blue[x] = pixel[2];
    }
  } else {
    for (size_t x = 0; x < count; ++x) {
      red[x] = row[4 * x];
      green[x] = row[4 * x + 1];
      blue[x] = row[4 * x + 2];
    }
  }
}

}  // namespace fusionloader
