// AVX2: gathers of 8 pixels in fixed point, 4 points at a time in double precision.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/sampling.hpp"
#include "ops/sampling_loops.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2")))

namespace fusionloader {
namespace {

typedef double Points __attribute__((vector_size(32)));
typedef uint32_t Ints __attribute__((vector_size(16)));
typedef uint64_t Pairs __attribute__((vector_size(32)));
typedef uint32_t Wide __attribute__((vector_size(32)));
using Inside = __m256d;
using FourTaps = __m128i;

constexpr Wide counted = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr int rows_per_vector = 1;

// Only gathers take these; their element types are their own.
inline const int* gatherable(const PackedImage& image) {
  return reinterpret_cast<const int*>(image.pixels);
}
inline const long long* gatherable_pairs(const PackedImage& image) {
  return reinterpret_cast<const long long*>(image.pixels);
}

FUSIONLOADER_TARGET inline Wide gathered_fixed(const PackedImage& image, Wide x, Wide y, Wide end_x,
                                               Wide end_y, Wide factors, Wide color) {
  // Gathers look at the masks' signs only: x >= 0 and x - end < 0, for y too.
  const Wide inside = ~x & (x - end_x) & ~y & (y - end_y);
  const __m256i both = _mm256_blend_epi16(__m256i(y >> 16), __m256i(x), 0xAA);
  return Wide(_mm256_mask_i32gather_epi32(__m256i(color), gatherable(image),
                                          _mm256_madd_epi16(both, __m256i(factors)),
                                          __m256i(inside), 4));
}

template <int with_zero, int with_side>
FUSIONLOADER_TARGET inline Inside inside_image(Points x, Points y, Points width, Points height) {
  const Points zero{};
  return _mm256_and_pd(
      _mm256_and_pd(_mm256_cmp_pd(x, zero, with_zero), _mm256_cmp_pd(x, width, with_side)),
      _mm256_and_pd(_mm256_cmp_pd(y, zero, with_zero), _mm256_cmp_pd(y, height, with_side)));
}
FUSIONLOADER_TARGET inline bool none(Inside inside) { return _mm256_movemask_pd(inside) == 0; }
// The even halves of 64-bit masks are masks of 32 bits.
FUSIONLOADER_TARGET inline __m128i halved(Inside inside) {
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(inside), even));
}
FUSIONLOADER_TARGET inline Ints chosen(Inside inside, Ints value, Ints other) {
  if (_mm256_movemask_pd(inside) == 15) return value;
  return Ints(_mm_blendv_epi8(__m128i(other), __m128i(value), halved(inside)));
}
FUSIONLOADER_TARGET inline Ints gathered(const PackedImage& image, Ints index, Inside inside,
                                         Ints color) {
  return Ints(_mm_mask_i32gather_epi32(__m128i(color), gatherable(image), __m128i(index),
                                       halved(inside), 4));
}
FUSIONLOADER_TARGET inline Pairs gathered_pairs(const PackedImage& image, Ints index) {
  return Pairs(_mm256_i32gather_epi64(gatherable_pairs(image), __m128i(index), 4));
}
FUSIONLOADER_TARGET inline Ints truncated(Points a) { return Ints(_mm256_cvttpd_epi32(a)); }
FUSIONLOADER_TARGET inline Pairs widened(Ints a) {
  return Pairs(_mm256_cvtepi32_epi64(__m128i(a)));
}
FUSIONLOADER_TARGET inline Points floor_of(Points a) { return _mm256_floor_pd(a); }
FUSIONLOADER_TARGET inline Ints clamp(Ints a, Ints last) {
  return Ints(_mm_min_epi32(_mm_max_epi32(__m128i(a), _mm_setzero_si128()), __m128i(last)));
}
FUSIONLOADER_TARGET inline Points biased_level(Pairs pixels, Points bias) {
  return _mm256_or_pd(__m256d(pixels & 255), bias);
}

FUSIONLOADER_TARGET inline FourTaps by_channel(const __m128i (&rows)[rows_per_vector]) {
  return _mm_shuffle_epi8(rows[0],
                          _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}
FUSIONLOADER_TARGET inline Points weighted(FourTaps taps, int weights) {
  const __m128i in_pairs = _mm_maddubs_epi16(taps, _mm_set1_epi32(weights));
  return _mm256_cvtepi32_pd(_mm_madd_epi16(in_pairs, _mm_set1_epi16(1)));
}
FUSIONLOADER_TARGET inline void split_rows(Points row, __m256d* out) { *out = row; }
FUSIONLOADER_TARGET inline uint32_t to_pixel(__m128i levels) {
  const __m128i bytes = _mm_packus_epi16(_mm_packus_epi32(levels, levels), levels);
  return static_cast<uint32_t>(_mm_cvtsi128_si32(bytes));
}

#include "ops/sampling_body.hpp"

inline __m128i* to_vector(void* at) { return static_cast<__m128i*>(at); }

FUSIONLOADER_TARGET void split(const uint32_t* row, size_t width, int channels,
                               uint8_t* const* planes) {
  const __m256i by_channel = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (size_t x = 0; x < width; x += 8) {
    const __m256i pixels = load<__m256i>(row + x);
    const __m256i split =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, by_channel), join);
    const __m128i red_green = _mm256_castsi256_si128(split);
    _mm_storel_epi64(to_vector(planes[0] + x), red_green);
    if (channels == 1) continue;
    _mm_storel_epi64(to_vector(planes[1] + x), _mm_unpackhi_epi64(red_green, red_green));
    _mm_storel_epi64(to_vector(planes[2] + x), _mm256_extracti128_si256(split, 1));
  }
}

}  // namespace

const SamplingKernels avx2_sampling{pack,  split,   affine,   perspective,
                                    fixed, nearest, bilinear, bicubic};

}  // namespace fusionloader
#endif
