// AVX-512 (F, BW, VL): gathers of 16 pixels in fixed point, 8 points at a time in double precision.
#if defined(__x86_64__)
// GCC 12 takes the undefined operands inside its own AVX-512 intrinsics for uninitialised values.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/sampling.hpp"
#include "ops/sampling_loops.hpp"

#define FUSIONLOADER_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace fusionloader {
namespace {

FUSIONLOADER_AVX512 void pack_avx512(const uint8_t* const* planes, int channels, size_t size,
                                     uint32_t* out) {
  pack_loop(planes, channels, size, out);
}

FUSIONLOADER_AVX512 void affine_avx512(const double* matrix, int y, size_t count, double* xs,
                                       double* ys) {
  affine_loop(matrix, y, count, xs, ys);
}

FUSIONLOADER_AVX512 void perspective_avx512(const double* coefficients, int y, size_t count,
                                            double* xs, double* ys) {
  perspective_loop(coefficients, y, count, xs, ys);
}

FUSIONLOADER_AVX512 inline __m512i broadcast(uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}

FUSIONLOADER_AVX512 void split_avx512(const uint32_t* row, size_t width, int channels,
                                      uint8_t* const* planes) {
  for (size_t x = 0; x < width; x += 16) {
    const __m512i pixels = _mm512_loadu_si512(row + x);
    _mm_storeu_epi8(planes[0] + x, _mm512_cvtepi32_epi8(pixels));
    if (channels == 1) continue;
    _mm_storeu_epi8(planes[1] + x, _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixels, 8)));
    _mm_storeu_epi8(planes[2] + x, _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixels, 16)));
  }
}

FUSIONLOADER_AVX512 void fixed_avx512(const PackedImage& image, FixedLine line, size_t count,
                                      uint32_t fill, uint32_t* out) {
  if (image.width > 32767 || image.height > 32767)  // sizes that 16-bit products cannot take
    return scalar_sampling.fixed(image, line, count, fill, out);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i step_x = broadcast(line.step_x * 16), step_y = broadcast(line.step_y * 16);
  __m512i x =
      _mm512_add_epi32(broadcast(line.x), _mm512_mullo_epi32(lanes, broadcast(line.step_x)));
  __m512i y =
      _mm512_add_epi32(broadcast(line.y), _mm512_mullo_epi32(lanes, broadcast(line.step_y)));
  const __m512i end_x = _mm512_set1_epi32(image.width << 16);
  const __m512i end_y = _mm512_set1_epi32(image.height << 16);
  const __m512i factors = _mm512_set1_epi32(image.width | 1 << 16);
  const __m512i color = broadcast(fill);
  for (size_t i = 0; i < count; i += 16) {
    // Unsigned, what is negative is too large as well.
    const __mmask16 inside =
        _mm512_mask_cmplt_epu32_mask(_mm512_cmplt_epu32_mask(x, end_x), y, end_y);
    const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(y, 16), x);
    _mm512_storeu_si512(out + i,
                        _mm512_mask_i32gather_epi32(color, inside, _mm512_madd_epi16(both, factors),
                                                    image.pixels, 4));
    x = _mm512_add_epi32(x, step_x);
    y = _mm512_add_epi32(y, step_y);
  }
}

FUSIONLOADER_AVX512 void nearest_avx512(const PackedImage& image, const double* xs,
                                        const double* ys, size_t count, uint32_t fill,
                                        uint32_t* out) {
  const __m512d zero = _mm512_setzero_pd();
  const __m512d width = _mm512_set1_pd(image.width), height = _mm512_set1_pd(image.height);
  for (size_t i = 0; i < count; i += 8) {
    const __m512d x = _mm512_loadu_pd(xs + i), y = _mm512_loadu_pd(ys + i);
    __mmask8 inside = _mm512_cmp_pd_mask(x, zero, _CMP_GE_OQ);
    inside = _mm512_mask_cmp_pd_mask(inside, x, width, _CMP_LT_OQ);
    inside = _mm512_mask_cmp_pd_mask(inside, y, zero, _CMP_GE_OQ);
    inside = _mm512_mask_cmp_pd_mask(inside, y, height, _CMP_LT_OQ);
    const __m256i index =
        _mm256_add_epi32(_mm256_mullo_epi32(_mm512_cvttpd_epi32(y), _mm256_set1_epi32(image.width)),
                         _mm512_cvttpd_epi32(x));
    _mm256_storeu_epi32(
        out + i, _mm256_mmask_i32gather_epi32(_mm256_set1_epi32(static_cast<int>(fill)), inside,
                                              index, image.pixels, 4));
  }
}

// A level between 0 and 255 in the lowest byte of each lane, as the double 2^52 + level.
FUSIONLOADER_AVX512 inline __m512d biased_level(__m512i pixels, __m512i bias) {
  constexpr int and_then_or = 0xEA;
  return _mm512_castsi512_pd(
      _mm512_ternarylogic_epi64(pixels, _mm512_set1_epi64(255), bias, and_then_or));
}

FUSIONLOADER_AVX512 inline __m256i clamp(__m256i value, __m256i last) {
  return _mm256_min_epi32(_mm256_max_epi32(value, _mm256_setzero_si256()), last);
}

FUSIONLOADER_AVX512 inline __m512d lerp(__m512d a, __m512d difference, __m512d distance) {
  return _mm512_add_pd(a, _mm512_mul_pd(difference, distance));
}

FUSIONLOADER_AVX512 inline __m512d floor_of(__m512d value) {
  return _mm512_roundscale_pd(value, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

FUSIONLOADER_AVX512 void bilinear_avx512(const PackedImage& image, const double* xs,
                                         const double* ys, size_t count, uint32_t fill,
                                         uint32_t* out) {
  const __m512d zero = _mm512_setzero_pd(), half = _mm512_set1_pd(0.5);
  const __m512d width = _mm512_set1_pd(image.width), height = _mm512_set1_pd(image.height);
  const __m512d bias = _mm512_set1_pd(0x1p52);
  const __m512i bias_bits = _mm512_castpd_si512(bias);
  const __m256i one = _mm256_set1_epi32(1), stride = _mm256_set1_epi32(image.width);
  const __m256i last_x = _mm256_set1_epi32(image.width - 1);
  const __m256i last_y = _mm256_set1_epi32(image.height - 1);
  const __m256i color = _mm256_set1_epi32(static_cast<int>(fill));
  for (size_t i = 0; i < count; i += 8) {
    __m512d x = _mm512_loadu_pd(xs + i), y = _mm512_loadu_pd(ys + i);
    // As in Pillow, what is not a number counts as inside; it ends up black.
    __mmask8 inside = _mm512_cmp_pd_mask(x, zero, _CMP_NLT_UQ);
    inside = _mm512_mask_cmp_pd_mask(inside, x, width, _CMP_NGE_UQ);
    inside = _mm512_mask_cmp_pd_mask(inside, y, zero, _CMP_NLT_UQ);
    inside = _mm512_mask_cmp_pd_mask(inside, y, height, _CMP_NGE_UQ);
    if (inside == 0) {
      _mm256_storeu_epi32(out + i, color);
      continue;
    }
    x = _mm512_sub_pd(x, half);
    y = _mm512_sub_pd(y, half);
    const __m512d whole_x = floor_of(x), whole_y = floor_of(y);
    const __m512d distance_x = _mm512_sub_pd(x, whole_x), distance_y = _mm512_sub_pd(y, whole_y);
    const __m256i column = _mm512_cvttpd_epi32(whole_x), row = _mm512_cvttpd_epi32(whole_y);
    // Clamped even outside, so that every load is within the image.
    const __m256i left = clamp(column, last_x);
    const __m256i right = clamp(_mm256_add_epi32(column, one), last_x);
    const __m256i top = clamp(row, last_y), bottom = clamp(_mm256_add_epi32(row, one), last_y);
    // A load gives two pixels; at the image's sides the second has to be the first.
    const __m512i to_right =
        _mm512_cvtepi32_epi64(_mm256_slli_epi32(_mm256_sub_epi32(right, left), 5));
    __m512i upper = _mm512_i32gather_epi64(_mm256_add_epi32(_mm256_mullo_epi32(top, stride), left),
                                           image.pixels, 4);
    __m512i lower = _mm512_i32gather_epi64(
        _mm256_add_epi32(_mm256_mullo_epi32(bottom, stride), left), image.pixels, 4);
    __m512i upper_right = _mm512_srlv_epi64(upper, to_right);
    __m512i lower_right = _mm512_srlv_epi64(lower, to_right);
    __m256i result = _mm256_setzero_si256();
    for (unsigned channel = 0; channel < 3; ++channel) {
      const __m512d a = biased_level(upper, bias_bits), c = biased_level(lower, bias_bits);
      const __m512d b = biased_level(upper_right, bias_bits);
      const __m512d d = biased_level(lower_right, bias_bits);
      const __m512d above = lerp(_mm512_sub_pd(a, bias), _mm512_sub_pd(b, a), distance_x);
      const __m512d below = lerp(_mm512_sub_pd(c, bias), _mm512_sub_pd(d, c), distance_x);
      const __m512d value = lerp(above, _mm512_sub_pd(below, above), distance_y);
      const __m256i level = _mm256_and_si256(_mm512_cvttpd_epi32(value), _mm256_set1_epi32(255));
      result = _mm256_or_si256(result, _mm256_slli_epi32(level, static_cast<int>(8 * channel)));
      upper = _mm512_srli_epi64(upper, 8);
      lower = _mm512_srli_epi64(lower, 8);
      upper_right = _mm512_srli_epi64(upper_right, 8);
      lower_right = _mm512_srli_epi64(lower_right, 8);
    }
    _mm256_storeu_epi32(out + i, _mm256_mask_blend_epi32(inside, color, result));
  }
}

// p1 + d * (p2 + d * (p3 + d * p4)), in Pillow's order
FUSIONLOADER_AVX512 inline __m512d cubic_lines(__m512d p1, __m512d p2, __m512d p3, __m512d p4,
                                               __m512d d) {
  const __m512d inner = _mm512_add_pd(p3, _mm512_mul_pd(d, p4));
  return _mm512_add_pd(p1, _mm512_mul_pd(d, _mm512_add_pd(p2, _mm512_mul_pd(d, inner))));
}

FUSIONLOADER_AVX512 inline __m256d cubic(__m256d p1, __m256d p2, __m256d p3, __m256d p4,
                                         __m256d d) {
  const __m256d inner = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
  return _mm256_add_pd(p1, _mm256_mul_pd(d, _mm256_add_pd(p2, _mm256_mul_pd(d, inner))));
}

FUSIONLOADER_AVX512 inline __m512d weighted(__m256i taps, int weights) {
  return _mm512_cvtepi32_pd(
      _mm256_dpbusd_epi32(_mm256_setzero_si256(), taps, _mm256_set1_epi32(weights)));
}

// Four pixels of each of two rows to one, all channels at once. The differences of levels are exact
// in integers.
FUSIONLOADER_AVX512 inline __m512d two_rows(__m128i first, __m128i second, __m512d distance) {
  const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  const __m256i taps =
      _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                      0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  // Weights of the taps from the first, in the lowest byte, to the fourth.
  return cubic_lines(weighted(taps, 0x00000100), weighted(taps, 0x000100FF),
                     weighted(taps, static_cast<int>(0xFF01FE02)), weighted(taps, 0x01FF01FF),
                     distance);
}

FUSIONLOADER_AVX512 inline int clamped(int position, int length) {
  return std::min(std::max(position, 0), length - 1);
}

FUSIONLOADER_AVX512 inline __m128i four_pixels(const PackedImage& image, int column, int row) {
  const uint32_t* from =
      image.pixels + static_cast<ptrdiff_t>(clamped(row, image.height)) * image.width;
  if (column >= 0 && column + 4 <= image.width) return _mm_loadu_epi32(from + column);
  uint32_t taps[4];
  for (int t = 0; t < 4; ++t) taps[t] = from[clamped(column + t, image.width)];
  return _mm_loadu_epi32(taps);
}

FUSIONLOADER_AVX512 void bicubic_avx512(const PackedImage& image, const double* xs,
                                        const double* ys, size_t count, uint32_t fill,
                                        uint32_t* out) {
  const __m256d zero = _mm256_setzero_pd(), most = _mm256_set1_pd(255);
  for (size_t i = 0; i < count; ++i) {
    if (xs[i] < 0 || xs[i] >= image.width || ys[i] < 0 || ys[i] >= image.height) {
      out[i] = fill;
      continue;
    }
    if (std::isnan(xs[i]) || std::isnan(ys[i])) {  // as Pillow, see the scalar kernel
      out[i] = 0;
      continue;
    }
    const double x = xs[i] - 0.5, y = ys[i] - 0.5;
    // Floors: neither is below -0.5.
    const int whole_x = x < 0 ? -1 : static_cast<int>(x),
              whole_y = y < 0 ? -1 : static_cast<int>(y);
    const int column = whole_x - 1, row = whole_y - 1;
    const __m512d distance = _mm512_set1_pd(x - whole_x);
    const __m512d lines_01 =
        two_rows(four_pixels(image, column, row), four_pixels(image, column, row + 1), distance);
    const __m512d lines_23 = two_rows(four_pixels(image, column, row + 2),
                                      four_pixels(image, column, row + 3), distance);
    const __m256d v1 = _mm512_castpd512_pd256(lines_01), v2 = _mm512_extractf64x4_pd(lines_01, 1);
    const __m256d v3 = _mm512_castpd512_pd256(lines_23), v4 = _mm512_extractf64x4_pd(lines_23, 1);
    const __m256d doubled = _mm256_mul_pd(_mm256_set1_pd(2), _mm256_sub_pd(v1, v2));
    const __m256d p2 = _mm256_sub_pd(v3, v1);
    const __m256d p3 = _mm256_sub_pd(_mm256_add_pd(doubled, v3), v4);
    const __m256d p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v2, v1), v3), v4);
    const __m256d value = cubic(v2, p2, p3, p4, _mm256_set1_pd(y - whole_y));
    const __m128i levels = _mm256_cvttpd_epi32(_mm256_min_pd(_mm256_max_pd(value, zero), most));
    out[i] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_cvtepi32_epi8(levels)));
  }
}

}  // namespace

const SamplingKernels avx512_sampling{pack_avx512,        split_avx512,  affine_avx512,
                                      perspective_avx512, fixed_avx512,  nearest_avx512,
                                      bilinear_avx512,    bicubic_avx512};

}  // namespace fusionloader
#endif
