// AVX2: one block at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include "jpeg/inverse_dct.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2")))

namespace fusionloader {
namespace {

using Vector = __m256i;

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
FUSIONLOADER_TARGET inline Vector pair_columns(Vector a) {
  const Vector order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(a, 0xD8), order);
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

}  // namespace

FUSIONLOADER_TARGET void inverse_dct_avx2(Block* blocks, const BlockTarget* targets, int count,
                                          int32_t& magnitude) {
  __m128i largest = _mm_setzero_si128();
  for (int i = 0; i < count; ++i) {
    int16_t* coefficients = blocks[i].coefficients.data();
    const int16_t* values = targets[i].quantisers->values.data();
    Vector pairs[4], quantisers[4], samples[2];
    for (int k = 0; k < 4; ++k) {
      pairs[k] = load_quarter(coefficients + 16 * k);
      quantisers[k] = load_quarter(values + 16 * k);
      _mm256_store_si256(reinterpret_cast<__m256i*>(coefficients + 16 * k), fill(0));
    }
    const Vector magnitudes = transform_blocks(pairs, quantisers, samples);
    largest = _mm_max_epi32(largest, with_column_4_further(magnitudes));
    store_rows(targets[i], samples[0], samples[1]);
  }
  raise(magnitude, largest);
}

}  // namespace fusionloader
#endif
