// AVX2: gathers of 8 pixels in fixed point, 4 points at a time in double precision.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/sampling.hpp"
#include "ops/sampling_loops.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))

namespace fusionloader {
namespace {

inline __m128i* to_vector(void* at) { return static_cast<__m128i*>(at); }
inline __m256i* to_wide(void* at) { return static_cast<__m256i*>(at); }
// Only gathers take this; their element type is their own.
inline const int* gatherable(const PackedImage& image) {
  return reinterpret_cast<const int*>(image.pixels);
}

FUSIONLOADER_AVX2 void pack_avx2(const uint8_t* const* planes, int channels, size_t size,
                                 uint32_t* out) {
  pack_loop(planes, channels, size, out);
}

FUSIONLOADER_AVX2 void affine_avx2(const double* matrix, int y, size_t count, double* xs,
                                   double* ys) {
  affine_loop(matrix, y, count, xs, ys);
}

FUSIONLOADER_AVX2 void perspective_avx2(const double* coefficients, int y, size_t count, double* xs,
                                        double* ys) {
  perspective_loop(coefficients, y, count, xs, ys);
}

FUSIONLOADER_AVX2 void split_avx2(const uint32_t* row, size_t width, int channels,
                                  uint8_t* const* planes) {
  const __m256i by_channel = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (size_t x = 0; x < width; x += 8) {
    __m256i pixels;
    std::memcpy(&pixels, row + x, sizeof pixels);
    const __m256i split =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, by_channel), join);
    const __m128i red_green = _mm256_castsi256_si128(split);
    _mm_storel_epi64(to_vector(planes[0] + x), red_green);
    if (channels == 1) continue;
    _mm_storel_epi64(to_vector(planes[1] + x), _mm_unpackhi_epi64(red_green, red_green));
    _mm_storel_epi64(to_vector(planes[2] + x), _mm256_extracti128_si256(split, 1));
  }
}

FUSIONLOADER_AVX2 inline __m256i broadcast(uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}

FUSIONLOADER_AVX2 void fixed_avx2(const PackedImage& image, FixedLine line, size_t count,
                                  uint32_t fill, uint32_t* out) {
  if (image.width > 32767 || image.height > 32767)  // sizes that 16-bit products cannot take
    return scalar_sampling.fixed(image, line, count, fill, out);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i step_x = broadcast(line.step_x * 8), step_y = broadcast(line.step_y * 8);
  __m256i x =
      _mm256_add_epi32(broadcast(line.x), _mm256_mullo_epi32(lanes, broadcast(line.step_x)));
  __m256i y =
      _mm256_add_epi32(broadcast(line.y), _mm256_mullo_epi32(lanes, broadcast(line.step_y)));
  const __m256i end_x = _mm256_set1_epi32(image.width << 16);
  const __m256i end_y = _mm256_set1_epi32(image.height << 16);
  const __m256i factors = _mm256_set1_epi32(image.width | 1 << 16);
  const __m256i color = broadcast(fill);
  for (size_t i = 0; i < count; i += 8) {
    // Gathers look at the masks' signs only: x >= 0 and x - end < 0, for y too.
    const __m256i inside = _mm256_and_si256(_mm256_andnot_si256(x, _mm256_sub_epi32(x, end_x)),
                                            _mm256_andnot_si256(y, _mm256_sub_epi32(y, end_y)));
    const __m256i both = _mm256_blend_epi16(_mm256_srli_epi32(y, 16), x, 0xAA);
    const __m256i pixels = _mm256_mask_i32gather_epi32(color, gatherable(image),
                                                       _mm256_madd_epi16(both, factors), inside, 4);
    _mm256_storeu_si256(to_wide(out + i), pixels);
    x = _mm256_add_epi32(x, step_x);
    y = _mm256_add_epi32(y, step_y);
  }
}

FUSIONLOADER_AVX2 void nearest_avx2(const PackedImage& image, const double* xs, const double* ys,
                                    size_t count, uint32_t fill, uint32_t* out) {
  const __m256d zero = _mm256_setzero_pd();
  const __m256d width = _mm256_set1_pd(image.width), height = _mm256_set1_pd(image.height);
  // The even halves of 64-bit masks are masks of 32 bits.
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  for (size_t i = 0; i < count; i += 4) {
    const __m256d x = _mm256_loadu_pd(xs + i), y = _mm256_loadu_pd(ys + i);
    const __m256d inside = _mm256_and_pd(
        _mm256_and_pd(_mm256_cmp_pd(x, zero, _CMP_GE_OQ), _mm256_cmp_pd(x, width, _CMP_LT_OQ)),
        _mm256_and_pd(_mm256_cmp_pd(y, zero, _CMP_GE_OQ), _mm256_cmp_pd(y, height, _CMP_LT_OQ)));
    const __m128i mask =
        _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(inside), even));
    const __m128i index =
        _mm_add_epi32(_mm_mullo_epi32(_mm256_cvttpd_epi32(y), _mm_set1_epi32(image.width)),
                      _mm256_cvttpd_epi32(x));
    _mm_storeu_si128(to_vector(out + i),
                     _mm_mask_i32gather_epi32(_mm_set1_epi32(static_cast<int>(fill)),
                                              gatherable(image), index, mask, 4));
  }
}

// A level between 0 and 255 in the lowest byte of each lane, as the double 2^52 + level.
FUSIONLOADER_AVX2 inline __m256d biased_level(__m256i pixels, __m256d bias) {
  const __m256i level = _mm256_and_si256(pixels, _mm256_set1_epi64x(255));
  return _mm256_or_pd(_mm256_castsi256_pd(level), bias);
}

FUSIONLOADER_AVX2 inline __m128i clamp(__m128i value, __m128i last) {
  return _mm_min_epi32(_mm_max_epi32(value, _mm_setzero_si128()), last);
}

FUSIONLOADER_AVX2 inline __m256d lerp(__m256d a, __m256d difference, __m256d distance) {
  return _mm256_add_pd(a, _mm256_mul_pd(difference, distance));
}

FUSIONLOADER_AVX2 void bilinear_avx2(const PackedImage& image, const double* xs, const double* ys,
                                     size_t count, uint32_t fill, uint32_t* out) {
  const __m256d zero = _mm256_setzero_pd(), half = _mm256_set1_pd(0.5);
  const __m256d width = _mm256_set1_pd(image.width), height = _mm256_set1_pd(image.height);
  const __m256d bias = _mm256_set1_pd(0x1p52);
  const __m128i one = _mm_set1_epi32(1);
  const __m128i last_x = _mm_set1_epi32(image.width - 1), stride = _mm_set1_epi32(image.width);
  const __m128i last_y = _mm_set1_epi32(image.height - 1);
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m128i color = _mm_set1_epi32(static_cast<int>(fill));
  const auto* pairs = reinterpret_cast<const long long*>(image.pixels);
  for (size_t i = 0; i < count; i += 4) {
    __m256d x = _mm256_loadu_pd(xs + i), y = _mm256_loadu_pd(ys + i);
    // As in Pillow, what is not a number counts as inside; it ends up black.
    const __m256d outside = _mm256_or_pd(
        _mm256_or_pd(_mm256_cmp_pd(x, zero, _CMP_LT_OQ), _mm256_cmp_pd(x, width, _CMP_GE_OQ)),
        _mm256_or_pd(_mm256_cmp_pd(y, zero, _CMP_LT_OQ), _mm256_cmp_pd(y, height, _CMP_GE_OQ)));
    const int outside_bits = _mm256_movemask_pd(outside);
    if (outside_bits == 15) {
      _mm_storeu_si128(to_vector(out + i), color);
      continue;
    }
    x = _mm256_sub_pd(x, half);
    y = _mm256_sub_pd(y, half);
    const __m256d whole_x = _mm256_floor_pd(x), whole_y = _mm256_floor_pd(y);
    const __m256d distance_x = _mm256_sub_pd(x, whole_x), distance_y = _mm256_sub_pd(y, whole_y);
    const __m128i column = _mm256_cvttpd_epi32(whole_x), row = _mm256_cvttpd_epi32(whole_y);
    // Clamped even outside, so that every load is within the image.
    const __m128i left = clamp(column, last_x), right = clamp(_mm_add_epi32(column, one), last_x);
    const __m128i top = clamp(row, last_y), bottom = clamp(_mm_add_epi32(row, one), last_y);
    // A load gives two pixels; at the image's sides the second has to be the first.
    const __m256i to_right = _mm256_cvtepi32_epi64(_mm_slli_epi32(_mm_sub_epi32(right, left), 5));
    __m256i upper =
        _mm256_i32gather_epi64(pairs, _mm_add_epi32(_mm_mullo_epi32(top, stride), left), 4);
    __m256i lower =
        _mm256_i32gather_epi64(pairs, _mm_add_epi32(_mm_mullo_epi32(bottom, stride), left), 4);
    __m256i upper_right = _mm256_srlv_epi64(upper, to_right);
    __m256i lower_right = _mm256_srlv_epi64(lower, to_right);
    __m128i result = _mm_setzero_si128();
    for (int channel = 0; channel < 3; ++channel) {
      const __m256d a = biased_level(upper, bias), c = biased_level(lower, bias);
      const __m256d above = lerp(_mm256_sub_pd(a, bias),
                                 _mm256_sub_pd(biased_level(upper_right, bias), a), distance_x);
      const __m256d below = lerp(_mm256_sub_pd(c, bias),
                                 _mm256_sub_pd(biased_level(lower_right, bias), c), distance_x);
      const __m256d value = lerp(above, _mm256_sub_pd(below, above), distance_y);
      const __m128i level = _mm_and_si128(_mm256_cvttpd_epi32(value), _mm_set1_epi32(255));
      result = _mm_or_si128(result, _mm_slli_epi32(level, 8 * channel));
      upper = _mm256_srli_epi64(upper, 8);
      lower = _mm256_srli_epi64(lower, 8);
      upper_right = _mm256_srli_epi64(upper_right, 8);
      lower_right = _mm256_srli_epi64(lower_right, 8);
    }
    if (outside_bits != 0) {
      const __m128i mask =
          _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(outside), even));
      result = _mm_blendv_epi8(result, color, mask);
    }
    _mm_storeu_si128(to_vector(out + i), result);
  }
}

// v[1] + d * (p2 + d * (p3 + d * p4)), in Pillow's order
FUSIONLOADER_AVX2 inline __m256d cubic(__m256d p1, __m256d p2, __m256d p3, __m256d p4, __m256d d) {
  const __m256d inner = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
  return _mm256_add_pd(p1, _mm256_mul_pd(d, _mm256_add_pd(p2, _mm256_mul_pd(d, inner))));
}

FUSIONLOADER_AVX2 inline __m256d weighted(__m128i taps, int weights) {
  const __m128i in_pairs = _mm_maddubs_epi16(taps, _mm_set1_epi32(weights));
  return _mm256_cvtepi32_pd(_mm_madd_epi16(in_pairs, _mm_set1_epi16(1)));
}

// Four pixels of a row to one, all channels at once. The differences of levels are exact in
// integers.
FUSIONLOADER_AVX2 inline __m256d cubic_row(__m128i pixels, __m256d distance) {
  const __m128i taps =
      _mm_shuffle_epi8(pixels, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  // Weights of the taps from the first, in the lowest byte, to the fourth.
  return cubic(weighted(taps, 0x00000100), weighted(taps, 0x000100FF),
               weighted(taps, static_cast<int>(0xFF01FE02)), weighted(taps, 0x01FF01FF), distance);
}

FUSIONLOADER_AVX2 inline int clamped(int position, int length) {
  return std::min(std::max(position, 0), length - 1);
}

FUSIONLOADER_AVX2 void bicubic_avx2(const PackedImage& image, const double* xs, const double* ys,
                                    size_t count, uint32_t fill, uint32_t* out) {
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
    const __m256d distance_x = _mm256_set1_pd(x - whole_x);
    __m256d lines[4];
    for (int line = 0; line < 4; ++line) {
      const uint32_t* from =
          image.pixels + static_cast<ptrdiff_t>(clamped(row + line, image.height)) * image.width;
      __m128i pixels;
      if (column >= 0 && column + 4 <= image.width) {
        std::memcpy(&pixels, from + column, sizeof pixels);
      } else {
        uint32_t taps[4];
        for (int t = 0; t < 4; ++t) taps[t] = from[clamped(column + t, image.width)];
        std::memcpy(&pixels, taps, sizeof pixels);
      }
      lines[line] = cubic_row(pixels, distance_x);
    }
    const __m256d p2 = _mm256_sub_pd(lines[2], lines[0]);
    const __m256d apart = _mm256_sub_pd(lines[0], lines[1]);
    const __m256d p3 =
        _mm256_sub_pd(_mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(2), apart), lines[2]), lines[3]);
    const __m256d p4 =
        _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(lines[1], lines[0]), lines[2]), lines[3]);
    const __m256d value = cubic(lines[1], p2, p3, p4, _mm256_set1_pd(y - whole_y));
    const __m128i levels = _mm256_cvttpd_epi32(_mm256_min_pd(_mm256_max_pd(value, zero), most));
    const __m128i bytes = _mm_packus_epi16(_mm_packus_epi32(levels, levels), levels);
    out[i] = static_cast<uint32_t>(_mm_cvtsi128_si32(bytes));
  }
}

}  // namespace

const SamplingKernels avx2_sampling{pack_avx2,  split_avx2,   affine_avx2,   perspective_avx2,
                                    fixed_avx2, nearest_avx2, bilinear_avx2, bicubic_avx2};

}  // namespace fusionloader
#endif
