#include "ops/tensor_blur.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "arithmetic/borders.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

// Sums that are made at a time: so many columns of two rows.
constexpr size_t columns = 64;

// Where a weight's element lies behind the first of the square, in floats.
struct Tap {
  size_t place;
  float weight;
};

void weigh_scalar(const float* from, const std::vector<Tap>& taps, float* out) {
  std::fill_n(out, columns, 0.0f);
  for (const Tap& tap : taps)
    for (size_t i = 0; i < columns; ++i) out[i] = std::fma(from[tap.place + i], tap.weight, out[i]);
}

#if defined(__x86_64__)
FUSIONLOADER_AVX2 void weigh_avx2(const float* from, const std::vector<Tap>& taps, float* out) {
  constexpr size_t vectors = columns / 8;
  __m256 sums[vectors];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (const Tap& tap : taps) {
    const __m256 weight = _mm256_set1_ps(tap.weight);
    const float* at = from + tap.place;
    for (size_t i = 0; i < vectors; ++i)
      sums[i] = _mm256_fmadd_ps(_mm256_loadu_ps(at + 8 * i), weight, sums[i]);
  }
  for (size_t i = 0; i < vectors; ++i) _mm256_storeu_ps(out + 8 * i, sums[i]);
}

FUSIONLOADER_AVX512 void weigh_avx512(const float* from, size_t stride,
                                      const std::vector<Tap>& taps, float* out, float* next) {
  constexpr size_t vectors = columns / 16;
  __m512 sums[vectors], below[vectors];
  for (size_t i = 0; i < vectors; ++i) sums[i] = below[i] = _mm512_setzero_ps();
  for (const Tap& tap : taps) {
    const __m512 weight = _mm512_set1_ps(tap.weight);
    const float* at = from + tap.place;
    for (size_t i = 0; i < vectors; ++i) {
      sums[i] = _mm512_fmadd_ps(_mm512_loadu_ps(at + 16 * i), weight, sums[i]);
      below[i] = _mm512_fmadd_ps(_mm512_loadu_ps(at + stride + 16 * i), weight, below[i]);
    }
  }
  for (size_t i = 0; i < vectors; ++i) {
    _mm512_storeu_ps(out + 16 * i, sums[i]);
    _mm512_storeu_ps(next + 16 * i, below[i]);
  }
}
#endif

void weigh(SimdLevel level, const float* from, size_t stride, const std::vector<Tap>& taps,
           float* out, float* next) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return weigh_avx512(from, stride, taps, out, next);
  if (level == SimdLevel::avx2) {
    weigh_avx2(from, taps, out);
    return weigh_avx2(from + stride, taps, next);
  }
#endif
  (void)level;
  weigh_scalar(from, taps, out);
  weigh_scalar(from + stride, taps, next);
}

template <int, class Element>
FUSIONLOADER_INLINE void load_loop(const Element* __restrict in, size_t step, float* __restrict out,
                                   size_t count) {
  if (step == 1)
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
  else
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i * step]);
}

// Torch rounds levels to the nearest even one, which adding and taking off 1.5 x 2^23 does.
template <int, class Element>
FUSIONLOADER_INLINE void store_loop(const float* __restrict sums, Element* __restrict out,
                                    size_t count) {
  constexpr float whole = 12582912.0f;
  for (size_t i = 0; i < count; ++i)
    if constexpr (std::is_same_v<Element, float>)
      out[i] = sums[i];
    else
      out[i] = static_cast<uint8_t>(static_cast<int>(sums[i] + whole - whole));
}

FUSIONLOADER_PER_LEVEL(load_row, load_loop)
FUSIONLOADER_PER_LEVEL(store_row, store_loop)

// exp() in torch's vectors, which is that of SLEEF, within 1 unit in the last place; of a number
// that is not positive.
float exp_in_vectors(float x) {
  if (x < -104.0f) return 0.0f;
  const float halvings = std::nearbyint(x * 1.442695040888963407f);
  float rest = std::fma(halvings, -0.693145751953125f, x);
  rest = std::fma(halvings, -1.428606765330187045e-06f, rest);
  float sum = 0.000198527617612853646278381f;
  for (const float term : {0.00139304355252534151077271f, 0.00833336077630519866943359f,
                           0.0416664853692054748535156f, 0.166666671633720397949219f, 0.5f})
    sum = std::fma(sum, rest, term);
  return std::ldexp(1.0f + std::fma(rest * rest, sum, rest), static_cast<int>(halvings));
}

// The sum of torch's softmax: vectors, then halves of one. Fewer are added up one by one.
float sum_in_vectors(const std::vector<float>& values, size_t lanes) {
  if (values.size() < lanes) {
    float sum = values[0];
    for (size_t i = 1; i < values.size(); ++i) sum += values[i];
    return sum;
  }
  std::vector<float> sums(values.begin(), values.begin() + static_cast<ptrdiff_t>(lanes));
  for (size_t i = lanes; i < values.size(); ++i) sums[i % lanes] += values[i];
  for (; lanes > 1; lanes /= 2)
    for (size_t i = 0; i < lanes / 2; ++i) sums[i] += sums[i + lanes / 2];
  return sums[0];
}

// torchvision's _get_gaussian_kernel1d: the softmax of squares of a linspace.
std::vector<float> weights_of_axis(int size, float sigma, int lanes) {
  if (size < 1 || size % 2 == 0 || size > most_blurred)
    throw std::invalid_argument("a blur's kernel size must be odd and at most 101");
  if (!(sigma > 0.0f)) throw std::invalid_argument("a blur's sigma must be positive");
  if (size == 1) return {1.0f};
  const auto end = static_cast<float>((size - 1) / (2.0 * std::sqrt(2.0)));
  const float step = (end + end) / static_cast<float>(size - 1);
  std::vector<float> weights;
  for (int i = 0; i < size; ++i) {
    const float place = i < size / 2 ? std::fma(step, static_cast<float>(i), -end)
                                     : std::fma(-step, static_cast<float>(size - 1 - i), end);
    const float steps = place / sigma;
    weights.push_back(-(steps * steps));
  }
  const float most = *std::max_element(weights.begin(), weights.end());
  for (float& weight : weights) weight = exp_in_vectors(weight - most);
  const float inverse = 1.0f / sum_in_vectors(weights, static_cast<size_t>(lanes));
  for (float& weight : weights) weight *= inverse;
  return weights;
}

}  // namespace

BlurSquare blur_square(int height, int width, float sigma_y, float sigma_x, int lanes) {
  const std::vector<float> down = weights_of_axis(height, sigma_y, lanes);
  const std::vector<float> across = weights_of_axis(width, sigma_x, lanes);
  BlurSquare square{height, width, {}};
  for (const float y : down)
    for (const float x : across) square.weights.push_back(y * x);
  return square;
}

template <class Element>
void blur_plane(const Element* in, size_t step, Element* out, int height, int width,
                const BlurSquare& square, BlurMemory& memory, SimdLevel level) {
  const int above = square.height / 2, before = square.width / 2;
  if (above >= height || before >= width)
    throw std::invalid_argument("a blur's kernel must be smaller than twice the image");
  const auto count = static_cast<size_t>(width), padded = (count + columns - 1) / columns * columns;
  const size_t stride = padded + static_cast<size_t>(square.width);
  const auto rows = static_cast<size_t>(height + 2 * above) + 1;  // two are made at a time
  memory.resize(std::max(memory.size(), rows * stride + 2 * padded));
  float *image = memory.data(), *sums = image + rows * stride, *next = sums + padded;
  for (int y = 0; y < height + 2 * above; ++y) {
    const auto from = static_cast<size_t>(reflected(y - above, height));
    float* row = image + static_cast<size_t>(y) * stride + before;
    load_row(level, in + from * count * step, step, row, count);
    for (int x = 1; x <= before; ++x) {
      row[-x] = row[x];
      row[width - 1 + x] = row[width - 1 - x];
    }
  }
  std::vector<Tap> taps;
  for (size_t i = 0; i < square.weights.size(); ++i) {
    const size_t columns_before = i % static_cast<size_t>(square.width);
    const size_t place = i / static_cast<size_t>(square.width) * stride + columns_before;
    // Levels times zero are zero; of floats some may be infinite.
    if (square.weights[i] != 0.0f || std::is_same_v<Element, float>)
      taps.push_back({place, square.weights[i]});
  }
  for (int y = 0; y < height; y += 2) {
    const float* from = image + static_cast<size_t>(y) * stride;
    for (size_t x = 0; x < padded; x += columns)
      weigh(level, from + x, stride, taps, sums + x, next + x);
    Element* to = out + static_cast<size_t>(y) * count;
    store_row(level, static_cast<const float*>(sums), to, count);
    if (y + 1 < height) store_row(level, static_cast<const float*>(next), to + count, count);
  }
}
template void blur_plane(const uint8_t*, size_t, uint8_t*, int, int, const BlurSquare&, BlurMemory&,
                         SimdLevel);
template void blur_plane(const float*, size_t, float*, int, int, const BlurSquare&, BlurMemory&,
                         SimdLevel);

}  // namespace fusionloader
