// The scalar reference, and the choice of kernels.
#include "ops/sampling.hpp"

#include <algorithm>
#include <cmath>

#include "ops/sampling_loops.hpp"

namespace fusionloader {
namespace {

void split_scalar(const uint32_t* row, size_t width, int channels, uint8_t* const* planes) {
  for (int channel = 0; channel < channels; ++channel)
    for (size_t x = 0; x < width; ++x)
      planes[channel][x] = static_cast<uint8_t>(row[x] >> 8 * channel);
}

void fixed_scalar(const PackedImage& image, FixedLine line, size_t count, uint32_t fill,
                  uint32_t* out) {
  for (size_t i = 0; i < count; ++i, line.x += line.step_x, line.y += line.step_y) {
    const int x = static_cast<int32_t>(line.x) >> 16, y = static_cast<int32_t>(line.y) >> 16;
    const bool inside = x >= 0 && x < image.width && y >= 0 && y < image.height;
    out[i] = inside ? image.pixels[static_cast<size_t>(y) * static_cast<size_t>(image.width) +
                                   static_cast<size_t>(x)]
                    : fill;
  }
}

void nearest_scalar(const PackedImage& image, const double* xs, const double* ys, size_t count,
                    uint32_t fill, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    const bool inside = xs[i] >= 0 && xs[i] < image.width && ys[i] >= 0 && ys[i] < image.height;
    out[i] = inside ? image.pixels[static_cast<size_t>(ys[i]) * static_cast<size_t>(image.width) +
                                   static_cast<size_t>(xs[i])]
                    : fill;
  }
}

double channel_of(uint32_t pixel, int channel) {
  return static_cast<double>(pixel >> 8 * channel & 255);
}

double linear(double a, double b, double d) { return a + (b - a) * d; }

double cubic(double a, double b, double c, double e, double d) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - e, p4 = -a + b - c + e;
  return b + d * (p2 + d * (p3 + d * p4));
}

// The points on one axis that a filter of `size` taps reads, and how far behind the middle it is.
template <int size>
struct Taps {
  size_t at[size];
  double distance;

  Taps(double position, int length) {
    const double shifted = position - 0.5;
    const int whole = shifted < 0 ? -1 : static_cast<int>(shifted);  // floor: at least -0.5
    const int first = whole - (size / 2 - 1);
    distance = shifted - whole;
    for (int t = 0; t < size; ++t)
      at[t] = static_cast<size_t>(std::clamp(first + t, 0, length - 1));
  }
};

template <int size>
uint32_t filtered(const PackedImage& image, double x, double y) {
  const Taps<size> columns(x, image.width), rows(y, image.height);
  uint32_t result = 0;
  for (int channel = 0; channel < 3; ++channel) {
    double lines[size];
    for (int line = 0; line < size; ++line) {
      const uint32_t* row = image.pixels + rows.at[line] * static_cast<size_t>(image.width);
      double v[size];
      for (int t = 0; t < size; ++t) v[t] = channel_of(row[columns.at[t]], channel);
      if constexpr (size == 2)
        lines[line] = linear(v[0], v[1], columns.distance);
      else
        lines[line] = cubic(v[0], v[1], v[2], v[3], columns.distance);
    }
    double value;
    if constexpr (size == 2)
      value = linear(lines[0], lines[1], rows.distance);
    else
      value = cubic(lines[0], lines[1], lines[2], lines[3], rows.distance);
    result |= static_cast<uint32_t>(std::clamp(value, 0.0, 255.0)) << 8 * channel;
  }
  return result;
}

template <int size>
void filter_scalar(const PackedImage& image, const double* xs, const double* ys, size_t count,
                   uint32_t fill, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    const double x = xs[i], y = ys[i];
    if (x < 0 || x >= image.width || y < 0 || y >= image.height)
      out[i] = fill;
    else if (std::isnan(x) || std::isnan(y))  // 0 / 0 in a perspective: Pillow ends up with black
      out[i] = 0;
    else
      out[i] = filtered<size>(image, x, y);
  }
}

}  // namespace

const SamplingKernels scalar_sampling{pack_loop,        split_scalar,    affine_loop,
                                      perspective_loop, fixed_scalar,    nearest_scalar,
                                      filter_scalar<2>, filter_scalar<4>};

const SamplingKernels& sampling_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return avx512_sampling;
  if (level == SimdLevel::avx2) return avx2_sampling;
#endif
  (void)level;
  return scalar_sampling;
}

}  // namespace fusionloader
