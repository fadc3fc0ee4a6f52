// AVX-512 (F, BW, VL, VNNI): gathers of 16 pixels in fixed point, 8 points at a time in double
// precision.
#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/sampling.hpp"
#include "ops/sampling_loops.hpp"
#include "simd/avx512.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace fusionloader {
namespace {

typedef double Points __attribute__((vector_size(64)));
typedef uint32_t Ints __attribute__((vector_size(32)));
typedef uint64_t Pairs __attribute__((vector_size(64)));
typedef uint32_t Wide __attribute__((vector_size(64)));
using Inside = __mmask8;
using FourTaps = __m256i;

constexpr Wide counted = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr int rows_per_vector = 2;

FUSIONLOADER_TARGET inline Wide gathered_fixed(const PackedImage& image, Wide x, Wide y, Wide end_x,
                                               Wide end_y, Wide factors, Wide color) {
  // Unsigned, what is negative is too large as well.
  const __mmask16 inside = _mm512_mask_cmplt_epu32_mask(
      _mm512_cmplt_epu32_mask(__m512i(x), __m512i(end_x)), __m512i(y), __m512i(end_y));
  const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAA, __m512i(y >> 16), __m512i(x));
  return Wide(_mm512_mask_i32gather_epi32(
      __m512i(color), inside, _mm512_madd_epi16(both, __m512i(factors)), image.pixels, 4));
}

template <int with_zero, int with_side>
FUSIONLOADER_TARGET inline Inside inside_image(Points x, Points y, Points width, Points height) {
  const Points zero{};
  Inside inside = _mm512_cmp_pd_mask(x, zero, with_zero);
  inside = _mm512_mask_cmp_pd_mask(inside, x, width, with_side);
  inside = _mm512_mask_cmp_pd_mask(inside, y, zero, with_zero);
  return _mm512_mask_cmp_pd_mask(inside, y, height, with_side);
}
FUSIONLOADER_TARGET inline bool none(Inside inside) { return inside == 0; }
FUSIONLOADER_TARGET inline Ints chosen(Inside inside, Ints value, Ints other) {
  return Ints(_mm256_mask_blend_epi32(inside, __m256i(other), __m256i(value)));
}
FUSIONLOADER_TARGET inline Ints gathered(const PackedImage& image, Ints index, Inside inside,
                                         Ints color) {
  return Ints(
      _mm256_mmask_i32gather_epi32(__m256i(color), inside, __m256i(index), image.pixels, 4));
}
FUSIONLOADER_TARGET inline Pairs gathered_pairs(const PackedImage& image, Ints index) {
  return Pairs(_mm512_i32gather_epi64(__m256i(index), image.pixels, 4));
}
FUSIONLOADER_TARGET inline Ints truncated(Points a) { return Ints(_mm512_cvttpd_epi32(a)); }
FUSIONLOADER_TARGET inline Pairs widened(Ints a) {
  return Pairs(_mm512_cvtepi32_epi64(__m256i(a)));
}
FUSIONLOADER_TARGET inline Points floor_of(Points a) {
  return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
FUSIONLOADER_TARGET inline Ints clamp(Ints a, Ints last) {
  return Ints(
      _mm256_min_epi32(_mm256_max_epi32(__m256i(a), _mm256_setzero_si256()), __m256i(last)));
}
FUSIONLOADER_TARGET inline Points biased_level(Pairs pixels, Points bias) {
  constexpr int and_then_or = 0xEA;
  return Points(_mm512_ternarylogic_epi64(__m512i(pixels), _mm512_set1_epi64(255), __m512i(bias),
                                          and_then_or));
}

FUSIONLOADER_TARGET inline FourTaps by_channel(const __m128i (&rows)[rows_per_vector]) {
  const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(rows[0]), rows[1], 1);
  return _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                         0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}
FUSIONLOADER_TARGET inline Points weighted(FourTaps taps, int weights) {
  return _mm512_cvtepi32_pd(
      _mm256_dpbusd_epi32(_mm256_setzero_si256(), taps, _mm256_set1_epi32(weights)));
}
FUSIONLOADER_TARGET inline void split_rows(Points rows, __m256d* out) {
  out[0] = _mm512_castpd512_pd256(rows);
  out[1] = _mm512_extractf64x4_pd(rows, 1);
}
FUSIONLOADER_TARGET inline uint32_t to_pixel(__m128i levels) {
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_cvtepi32_epi8(levels)));
}

#include "ops/sampling_body.hpp"

FUSIONLOADER_TARGET void split(const uint32_t* row, size_t width, int channels,
                               uint8_t* const* planes) {
  for (size_t x = 0; x < width; x += 16) {
    const __m512i pixels = load<__m512i>(row + x);
    _mm_storeu_epi8(planes[0] + x, _mm512_cvtepi32_epi8(pixels));
    if (channels == 1) continue;
    _mm_storeu_epi8(planes[1] + x, _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixels, 8)));
    _mm_storeu_epi8(planes[2] + x, _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixels, 16)));
  }
}

}  // namespace

const SamplingKernels avx512_sampling{pack,  split,   affine,   perspective,
                                      fixed, nearest, bilinear, bicubic};

}  // namespace fusionloader
#endif
