// AVX2: one block at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"
#include "simd/vector128.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2")))

namespace fusionloader {
namespace {

using Vector = __m256i;

FUSIONLOADER_TARGET inline Vector128 low_half(Vector a) { return _mm256_castsi256_si128(a); }
FUSIONLOADER_TARGET inline Vector128 high_half(Vector a) { return _mm256_extracti128_si256(a, 1); }
FUSIONLOADER_TARGET inline Vector load_quarter(const int16_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
FUSIONLOADER_TARGET inline void store_quarter(int16_t* to, Vector a) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), a);
}
FUSIONLOADER_TARGET inline Vector fill(int value) { return _mm256_set1_epi32(value); }
FUSIONLOADER_TARGET inline Vector fill_pairs(int first, int second) {
  return _mm256_set1_epi32((first & 0xFFFF) |
                           static_cast<int>(static_cast<unsigned>(second) << 16));
}
FUSIONLOADER_TARGET inline Vector add(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector subtract(Vector a, Vector b) { return _mm256_sub_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector multiply(Vector a, Vector b) { return _mm256_mullo_epi16(a, b); }
FUSIONLOADER_TARGET inline Vector multiply_add(Vector a, Vector b) {
  return _mm256_madd_epi16(a, b);
}
FUSIONLOADER_TARGET inline Vector magnitude_of(Vector a) { return _mm256_abs_epi16(a); }
FUSIONLOADER_TARGET inline Vector shift_right(Vector a, int bits) {
  return _mm256_srai_epi32(a, bits);
}
FUSIONLOADER_TARGET inline Vector pack(Vector a, Vector b) { return _mm256_packs_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector pair_columns(Vector upper, Vector lower) {
  const Vector order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(pack(upper, lower), 0xD8), order);
}
FUSIONLOADER_TARGET inline Vector pack_bytes(Vector a, Vector b) {
  return _mm256_xor_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8(-128));
}
FUSIONLOADER_TARGET inline Vector turn_bytes(Vector a) {
  const Vector order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm256_shuffle_epi8(a, order);
}
FUSIONLOADER_TARGET inline Vector interleave_low_32(Vector a, Vector b) {
  return _mm256_unpacklo_epi32(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_high_32(Vector a, Vector b) {
  return _mm256_unpackhi_epi32(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_low_64(Vector a, Vector b) {
  return _mm256_unpacklo_epi64(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_high_64(Vector a, Vector b) {
  return _mm256_unpackhi_epi64(a, b);
}

#include "jpeg/inverse_dct_body.hpp"
// One block at a time.
#include "jpeg/inverse_dct_blocks.hpp"

}  // namespace

const DctKernels avx2_dct{transform_each, reduce_each<4>, reduce_each<2>, reduce_each<1>};

}  // namespace fusionloader
#endif
