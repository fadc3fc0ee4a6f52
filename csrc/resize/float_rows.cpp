#include "resize/float_rows.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ops/vectors.hpp"

namespace fusionloader {
namespace {

float linear(float x) {
  const float distance = std::fabs(x);
  return distance < 1.0f ? static_cast<float>(1.0 - distance) : 0.0f;
}

float cubic(float x) {
  const float distance = std::fabs(x);
  if (distance < 1.0f) return std::fma(std::fma(1.5f, distance, -2.5f) * distance, distance, 1.0f);
  if (distance < 2.0f)
    return std::fma(std::fma(std::fma(-0.5f, distance, 2.5f), distance, -4.0f), distance, 2.0f);
  return 0.0f;
}

// Of the taps behind the first, whole groups of four have rounded products: their end.
FUSIONLOADER_INLINE int rounded_taps(int count) { return 1 + (count - 1) / 4 * 4; }

void columns_scalar(const float* row, const FloatWeights& weights, float* out) {
  const auto outputs = static_cast<int>(weights.outputs());
  for (int x = 0; x < outputs; ++x, out += floats_per_pixel) {
    const float* from = row + static_cast<ptrdiff_t>(weights.first(x) - weights.inputs_begin()) * 4;
    const float* taps = weights.taps(x);
    const int count = weights.count(x), rounded = rounded_taps(count);
    for (int i = 0; i < 4; ++i) {
      float sum = from[i] * taps[0];
      int t = 1;
      for (; t < rounded; ++t) sum += from[4 * t + i] * taps[t];
      for (; t < count; ++t) sum = std::fma(from[4 * t + i], taps[t], sum);
      out[i] = sum;
    }
  }
}

void rows_scalar(const float* const* rows, const float* weights, int count, float* out,
                 size_t floats) {
  const int rounded = rounded_taps(count);
  for (size_t i = 0; i < floats; ++i) {
    float sum = rows[0][i] * weights[0];
    int t = 1;
    for (; t < rounded; ++t) sum += rows[t][i] * weights[t];
    for (; t < count; ++t) sum = std::fma(rows[t][i], weights[t], sum);
    out[i] = sum;
  }
}

#if defined(__x86_64__)
// A pixel is a vector; wider ones would make it no faster.
FUSIONLOADER_AVX2 void columns_avx2(const float* const* rows, const FloatWeights& weights,
                                    float* const* out) {
  const auto outputs = static_cast<int>(weights.outputs());
  for (int x = 0; x < outputs; ++x) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(weights.first(x) - weights.inputs_begin()) * 4;
    const float* taps = weights.taps(x);
    const int count = weights.count(x), rounded = rounded_taps(count);
    __m128 sums[rows_at_once], weight = _mm_set1_ps(taps[0]);
    for (int row = 0; row < rows_at_once; ++row)
      sums[row] = _mm_mul_ps(_mm_loadu_ps(rows[row] + at), weight);
    int t = 1;
    for (; t < rounded; ++t) {
      weight = _mm_set1_ps(taps[t]);
      for (int row = 0; row < rows_at_once; ++row)
        sums[row] = _mm_add_ps(sums[row], _mm_mul_ps(_mm_loadu_ps(rows[row] + at + 4 * t), weight));
    }
    for (; t < count; ++t) {
      weight = _mm_set1_ps(taps[t]);
      for (int row = 0; row < rows_at_once; ++row)
        sums[row] = _mm_fmadd_ps(_mm_loadu_ps(rows[row] + at + 4 * t), weight, sums[row]);
    }
    for (int row = 0; row < rows_at_once; ++row) _mm_storeu_ps(out[row] + 4 * x, sums[row]);
  }
}

FUSIONLOADER_AVX2 void rows_avx2(const float* const* rows, const float* weights, int count,
                                 float* out, size_t floats) {
  const int rounded = rounded_taps(count);
  for (size_t i = 0; i < floats; i += 16) {
    const __m256 first = _mm256_set1_ps(weights[0]);
    __m256 low = _mm256_mul_ps(_mm256_loadu_ps(rows[0] + i), first);
    __m256 high = _mm256_mul_ps(_mm256_loadu_ps(rows[0] + i + 8), first);
    int t = 1;
    for (; t < rounded; ++t) {
      const __m256 weight = _mm256_set1_ps(weights[t]);
      low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(rows[t] + i), weight));
      high = _mm256_add_ps(high, _mm256_mul_ps(_mm256_loadu_ps(rows[t] + i + 8), weight));
    }
    for (; t < count; ++t) {
      const __m256 weight = _mm256_set1_ps(weights[t]);
      low = _mm256_fmadd_ps(_mm256_loadu_ps(rows[t] + i), weight, low);
      high = _mm256_fmadd_ps(_mm256_loadu_ps(rows[t] + i + 8), weight, high);
    }
    _mm256_storeu_ps(out + i, low);
    _mm256_storeu_ps(out + i + 8, high);
  }
}
#endif

template <int lanes, class Floats = typename Vectors<lanes>::Floats>
FUSIONLOADER_INLINE Floats loaded(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

template <int>
FUSIONLOADER_INLINE void normalize_loop(float* row, size_t pixels, const float* mean,
                                        const float* deviation) {
  using Floats = Vectors<4>::Floats;
  const Floats from = loaded<4>(mean), by = loaded<4>(deviation);
  for (size_t x = 0; x < pixels; ++x, row += floats_per_pixel) {
    const Floats made = (loaded<4>(row) - from) / by;
    std::memcpy(row, &made, sizeof made);
  }
}

template <int>
FUSIONLOADER_INLINE void split_loop(const float* __restrict row, size_t pixels, size_t channels,
                                    float* __restrict out, size_t plane) {
  if (channels < 3) {
    for (size_t channel = 0; channel < channels; ++channel)
      for (size_t x = 0; x < pixels; ++x) out[channel * plane + x] = row[4 * x + channel];
    return;
  }
  float* __restrict second = out + plane, * __restrict third = second + plane;
  for (size_t x = 0; x < pixels; ++x) {
    out[x] = row[4 * x];
    second[x] = row[4 * x + 1];
    third[x] = row[4 * x + 2];
  }
  if (channels == 4)
    for (size_t x = 0; x < pixels; ++x) out[3 * plane + x] = row[4 * x + 3];
}

template <int>
FUSIONLOADER_INLINE void levels_loop(const float* __restrict row, size_t floats,
                                     uint8_t* __restrict out) {
  for (size_t i = 0; i < floats; ++i) {
    const float rounded = __builtin_rintf(row[i]);
    const float clipped = rounded < 0.0f ? 0.0f : rounded > 255.0f ? 255.0f : rounded;
    out[i] = static_cast<uint8_t>(static_cast<int>(clipped));
  }
}

FUSIONLOADER_PER_LEVEL(run_normalize, normalize_loop)
FUSIONLOADER_PER_LEVEL(run_split, split_loop)
FUSIONLOADER_PER_LEVEL(run_levels, levels_loop)

}  // namespace

template <class Kernel>
void FloatWeights::fill(Kernel kernel, float kernel_support, int in_size, int out_size, int begin,
                        bool mirrored) {
  const float scale = static_cast<float>(in_size) / static_cast<float>(out_size);
  const float support = scale >= 1.0f ? kernel_support * scale : kernel_support;
  const float inverse = scale >= 1.0f ? static_cast<float>(1.0 / scale) : 1.0f;
  const size_t outputs = first_.size();
  stride_ = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  taps_.resize(outputs * stride_);
  inputs_begin_ = in_size;
  inputs_end_ = 0;
  for (size_t i = 0; i < outputs; ++i) {
    const auto centre = static_cast<float>(scale * (static_cast<int>(i) + begin + 0.5));
    const int from = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), in_size);
    const int count = std::clamp(end - from, 1, static_cast<int>(stride_));
    const size_t output = mirrored ? outputs - 1 - i : i;
    float* weights = &taps_[output * stride_];
    float sum = 0.0f;
    for (int t = 0; t < count; ++t) {
      const float place = static_cast<float>(t + from) - centre;
      sum += weights[t] = kernel(static_cast<float>((place + 0.5) * inverse));
    }
    if (sum != 0.0f)
      for (int t = 0; t < count; ++t) weights[t] /= sum;
    first_[output] = from;
    count_[output] = count;
    inputs_begin_ = std::min(inputs_begin_, from);
    inputs_end_ = std::max(inputs_end_, from + count);
  }
}

void FloatWeights::compute(Filter filter, int in_size, int out_size, int begin, int count,
                           bool mirrored) {
  first_.resize(static_cast<size_t>(count));
  count_.resize(static_cast<size_t>(count));
  if (filter == Filter::float_bilinear)
    return fill(linear, 1.0f, in_size, out_size, begin, mirrored);
  if (filter == Filter::float_bicubic) return fill(cubic, 2.0f, in_size, out_size, begin, mirrored);
  throw std::invalid_argument("floats are resized by a filter for floats alone");
}

void weigh_columns(SimdLevel level, const float* const* rows, const FloatWeights& weights,
                   float* const* out) {
#if defined(__x86_64__)
  if (level >= SimdLevel::avx2) return columns_avx2(rows, weights, out);
#endif
  (void)level;
  for (int row = 0; row < rows_at_once; ++row) columns_scalar(rows[row], weights, out[row]);
}

void weigh_rows(SimdLevel level, const float* const* rows, const float* weights, int count,
                float* out, size_t floats) {
#if defined(__x86_64__)
  if (level >= SimdLevel::avx2) return rows_avx2(rows, weights, count, out, floats);
#endif
  (void)level;
  rows_scalar(rows, weights, count, out, floats);
}

void subtract_and_divide(SimdLevel level, float* row, size_t pixels, const FloatPixel& mean,
                         const FloatPixel& deviation) {
  run_normalize(level, row, pixels, mean.data(), deviation.data());
}

void split_channels(SimdLevel level, const float* row, size_t pixels, size_t channels, float* out,
                    size_t plane) {
  run_split(level, row, pixels, channels, out, plane);
}

void round_to_levels(SimdLevel level, const float* row, size_t pixels, uint8_t* out) {
  run_levels(level, row, pixels * floats_per_pixel, out);
}

void look_up_floats(const uint8_t* levels, size_t pixels, const float* const (&tables)[3],
                    float* out) {
  for (size_t x = 0; x < pixels; ++x, levels += 4, out += 4) {
    out[0] = tables[0][levels[0]];
    out[1] = tables[1][levels[1]];
    out[2] = tables[2][levels[2]];
    out[3] = 0.0f;
  }
}

}  // namespace fusionloader
