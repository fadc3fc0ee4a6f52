// AVX2: two rows at a time in the horizontal pass, 16 bytes in the vertical one.
#if defined(__x86_64__)
#include <immintrin.h>

#include "resize/kernels.hpp"
#include "simd/inline.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2")))

namespace fusionloader {
namespace {

using Vector = __m256i;

constexpr size_t rows_per_vector = 2, vectors_together = 1, parts = 2;

inline const __m128i* as_vector(const void* at) { return static_cast<const __m128i*>(at); }
inline __m128i* to_vector(void* at) { return static_cast<__m128i*>(at); }

FUSIONLOADER_TARGET inline Vector filled_32(int32_t value) { return _mm256_set1_epi32(value); }
FUSIONLOADER_TARGET inline Vector add_32(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector shift_left_32(Vector a, int bits) {
  return _mm256_slli_epi32(a, bits);
}
FUSIONLOADER_TARGET inline Vector shift_right_signed_32(Vector a, int bits) {
  return _mm256_srai_epi32(a, bits);
}
FUSIONLOADER_TARGET inline Vector add_products(Vector sum, Vector a, Vector b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
FUSIONLOADER_TARGET inline Vector pack_32(Vector a, Vector b) { return _mm256_packs_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector pack_16_unsigned(Vector a, Vector b) {
  return _mm256_packus_epi16(a, b);
}
FUSIONLOADER_TARGET inline Vector shuffled_rows(Vector a, const int8_t* order) {
  return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(_mm_load_si128(as_vector(order))));
}
FUSIONLOADER_TARGET inline Vector load_rows(const uint8_t* const* rows, size_t at) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(as_vector(rows[0] + at))),
                                 _mm_loadu_si128(as_vector(rows[1] + at)), 1);
}
FUSIONLOADER_TARGET inline void store_rows(uint8_t* const* rows, size_t at, Vector bytes) {
  _mm_storeu_si128(to_vector(rows[0] + at), _mm256_castsi256_si128(bytes));
  _mm_storeu_si128(to_vector(rows[1] + at), _mm256_extracti128_si256(bytes, 1));
}
FUSIONLOADER_TARGET inline void row_pairs(const uint8_t* first, const uint8_t* second,
                                          Vector (&pairs)[parts]) {
  const __m128i a = _mm_loadu_si128(as_vector(first)), b = _mm_loadu_si128(as_vector(second));
  pairs[0] = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
  pairs[1] = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
}
FUSIONLOADER_TARGET inline void store_row(uint8_t* to, const Vector (&values)[parts]) {
  const Vector words = _mm256_permute4x64_epi64(pack_32(values[0], values[1]), 0xD8);
  _mm_storeu_si128(to_vector(to), _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                   _mm256_extracti128_si256(words, 1)));
}

#include "resize/weighing_split.hpp"
// The weighing comes first.
#include "resize/kernels_body.hpp"

}  // namespace

const ResizeKernels avx2_kernels{prepare_pairs, horizontal, vertical, split_planes_128};

}  // namespace fusionloader
#endif
