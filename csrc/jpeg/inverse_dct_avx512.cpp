// AVX-512 (F, BW, VL): two blocks at a time.
#if defined(__x86_64__)
#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"
#include "simd/avx512.hpp"
#include "simd/vector128.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace fusionloader {
namespace {

using Vector = __m512i;

FUSIONLOADER_TARGET inline Vector fill(int value) { return _mm512_set1_epi32(value); }
FUSIONLOADER_TARGET inline Vector fill_pairs(int first, int second) {
  return _mm512_set1_epi32((first & 0xFFFF) |
                           static_cast<int>(static_cast<unsigned>(second) << 16));
}
FUSIONLOADER_TARGET inline Vector add(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector subtract(Vector a, Vector b) { return _mm512_sub_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector multiply(Vector a, Vector b) { return _mm512_mullo_epi16(a, b); }
FUSIONLOADER_TARGET inline Vector multiply_add(Vector a, Vector b) {
  return _mm512_madd_epi16(a, b);
}
FUSIONLOADER_TARGET inline Vector magnitude_of(Vector a) { return _mm512_abs_epi16(a); }
FUSIONLOADER_TARGET inline Vector shift_right(Vector a, int bits) {
  return _mm512_srai_epi32(a, static_cast<unsigned>(bits));
}
FUSIONLOADER_TARGET inline Vector pack(Vector a, Vector b) { return _mm512_packs_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector pair_columns(Vector upper, Vector lower) {
  const Vector order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  return _mm512_shuffle_epi8(_mm512_permutex_epi64(pack(upper, lower), 0xD8), order);
}
FUSIONLOADER_TARGET inline Vector pack_bytes(Vector a, Vector b) {
  return _mm512_xor_si512(_mm512_packs_epi16(a, b), _mm512_set1_epi8(-128));
}
FUSIONLOADER_TARGET inline Vector turn_bytes(Vector a) {
  const Vector order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(a, order);
}
FUSIONLOADER_TARGET inline Vector interleave_low_32(Vector a, Vector b) {
  return _mm512_unpacklo_epi32(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_high_32(Vector a, Vector b) {
  return _mm512_unpackhi_epi32(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_low_64(Vector a, Vector b) {
  return _mm512_unpacklo_epi64(a, b);
}
FUSIONLOADER_TARGET inline Vector interleave_high_64(Vector a, Vector b) {
  return _mm512_unpackhi_epi64(a, b);
}

#include "jpeg/inverse_dct_body.hpp"

FUSIONLOADER_TARGET inline __m256i load_quarter(const int16_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

FUSIONLOADER_TARGET inline Vector load_two(const int16_t* first, const int16_t* second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load_quarter(first)), load_quarter(second), 1);
}

FUSIONLOADER_TARGET inline void clear(Block& block) {
  for (size_t i = 0; i < 64; i += 32) _mm512_store_si512(&block.coefficients[i], fill(0));
}

// The sums of columns c and c + 4 of both blocks: of each column the larger one.
FUSIONLOADER_TARGET inline Vector128 larger_sums(Vector magnitudes) {
  const __m256i first = _mm512_castsi512_si256(magnitudes);
  const __m256i second = _mm512_extracti64x4_epi64(magnitudes, 1);
  return maximum_32(add_32(_mm256_castsi256_si128(first), _mm256_extracti128_si256(first, 1)),
                    add_32(_mm256_castsi256_si128(second), _mm256_extracti128_si256(second, 1)));
}

template <int block>
FUSIONLOADER_TARGET inline void store_block(const BlockTarget& target, const Vector* samples) {
  store_rows(target, _mm512_extracti32x4_epi32(samples[0], 2 * block),
             _mm512_extracti32x4_epi32(samples[1], 2 * block),
             _mm512_extracti32x4_epi32(samples[0], 2 * block + 1),
             _mm512_extracti32x4_epi32(samples[1], 2 * block + 1));
}

}  // namespace

FUSIONLOADER_TARGET void inverse_dct_avx512(Block* blocks, const BlockTarget* targets, int count,
                                            int32_t& magnitude) {
  Vector128 largest = filled_32(0);
  int i = 0;
  for (; i + 1 < count; i += 2) {
    Vector pairs[4], quantisers[4], samples[2];
    for (size_t k = 0; k < 4; ++k) {
      pairs[k] = load_two(&blocks[i].coefficients[16 * k], &blocks[i + 1].coefficients[16 * k]);
      quantisers[k] = load_two(&targets[i].quantisers->values[16 * k],
                               &targets[i + 1].quantisers->values[16 * k]);
    }
    clear(blocks[i]);
    clear(blocks[i + 1]);
    const Vector magnitudes = transform_blocks(pairs, quantisers, samples);
    largest = maximum_32(largest, larger_sums(magnitudes));
    store_block<0>(targets[i], samples);
    store_block<1>(targets[i + 1], samples);
  }
  raise(magnitude, largest);
  if (i < count) avx2_dct.to_8(blocks + i, targets + i, count - i, magnitude);
}

}  // namespace fusionloader
#endif
