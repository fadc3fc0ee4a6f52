// AVX2: one block at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"

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

// Takes a block's coefficients out of it.
FUSIONLOADER_TARGET inline void take(Block& block, const BlockTarget& target, Vector* pairs,
                                     Vector* quantisers) {
  int16_t* coefficients = block.coefficients.data();
  const int16_t* values = target.quantisers->values.data();
  for (int k = 0; k < 4; ++k) {
    pairs[k] = load_quarter(coefficients + 16 * k);
    quantisers[k] = load_quarter(values + 16 * k);
    _mm256_store_si256(reinterpret_cast<__m256i*>(coefficients + 16 * k), fill(0));
  }
}

template <int side>
FUSIONLOADER_TARGET inline void reduce_pairs(const Vector* pairs, Vector* out, int shift) {
  shift += dct::more_bits(side);
  const Vector half = fill(1 << (shift - 1));
  // No factor has 16 bits: two outputs take it twice.
  Vector sum = multiply_add(pairs[0], fill_pairs(1 << (dct::fraction_bits + 1), 0));
  if (side == 2) {
    sum = add(add(sum, sum), half);
    const Vector odd = add(multiply_add(pairs[1], factors(dct::odd_15_of_2)),
                           multiply_add(pairs[3], factors(dct::odd_37_of_2)));
    out[0] = shift_right(add(sum, odd), shift);
    out[1] = shift_right(subtract(sum, odd), shift);
    return;
  }
  sum = add(sum, half);
  const Vector wide = multiply_add(pairs[2], factors(dct::even_26_of_4));
  const Vector even[2] = {add(sum, wide), subtract(sum, wide)};
  for (int k = 0; k < 2; ++k) {
    const Vector odd = add(multiply_add(pairs[1], factors(dct::odd_15_of_4[k])),
                           multiply_add(pairs[3], factors(dct::odd_37_of_4[k])));
    out[k] = shift_right(add(even[k], odd), shift);
    out[3 - k] = shift_right(subtract(even[k], odd), shift);
  }
}

template <int side>
FUSIONLOADER_TARGET inline void store_corner(const BlockTarget& target, __m128i rows) {
  alignas(16) uint8_t bytes[16];  // rows of four
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), rows);
  for (size_t row = 0; row < side; ++row)
    std::memcpy(target.samples + row * target.stride, bytes + 4 * row, side);
}

template <int side>
FUSIONLOADER_TARGET inline void reduce_blocks(Block* blocks, const BlockTarget* targets, int count,
                                              int32_t& magnitude) {
  __m128i largest = _mm_setzero_si128();
  for (int i = 0; i < count; ++i) {
    Vector pairs[4], quantisers[4];
    take(blocks[i], targets[i], pairs, quantisers);
    const Vector magnitudes = multiply_pairs(pairs, quantisers);
    largest = _mm_max_epi32(largest, with_column_4_further(magnitudes));
    if (side == 1) {
      const auto mean = static_cast<int16_t>(_mm256_extract_epi16(pairs[0], 0));
      if (wraps_around((mean + 4) >> 3)) magnitude = std::max(magnitude, too_large);
      const Vector value = shift_right(fill(mean + 4), 3);
      store_corner<1>(targets[i],
                      _mm256_castsi256_si128(pack_bytes(pack(value, value), pack(value, value))));
      continue;
    }
    Vector values[8] = {fill(0), fill(0), fill(0), fill(0), fill(0), fill(0), fill(0), fill(0)};
    reduce_pairs<side>(pairs, values, dct::column_shift);
    turn(values, pairs);
    reduce_pairs<side>(pairs, values, dct::row_shift);
    const Vector samples =
        turn_bytes(pack_bytes(pack(values[0], values[1]), pack(values[2], values[3])));
    store_corner<side>(targets[i], _mm256_castsi256_si128(samples));
  }
  raise(magnitude, largest);
}

}  // namespace

FUSIONLOADER_TARGET void reduced_dct_4_avx2(Block* blocks, const BlockTarget* targets, int count,
                                            int32_t& magnitude) {
  reduce_blocks<4>(blocks, targets, count, magnitude);
}
FUSIONLOADER_TARGET void reduced_dct_2_avx2(Block* blocks, const BlockTarget* targets, int count,
                                            int32_t& magnitude) {
  reduce_blocks<2>(blocks, targets, count, magnitude);
}
FUSIONLOADER_TARGET void reduced_dct_1_avx2(Block* blocks, const BlockTarget* targets, int count,
                                            int32_t& magnitude) {
  reduce_blocks<1>(blocks, targets, count, magnitude);
}

FUSIONLOADER_TARGET void inverse_dct_avx2(Block* blocks, const BlockTarget* targets, int count,
                                          int32_t& magnitude) {
  __m128i largest = _mm_setzero_si128();
  for (int i = 0; i < count; ++i) {
    Vector pairs[4], quantisers[4], samples[2];
    take(blocks[i], targets[i], pairs, quantisers);
    const Vector magnitudes = transform_blocks(pairs, quantisers, samples);
    largest = _mm_max_epi32(largest, with_column_4_further(magnitudes));
    store_rows(targets[i], samples[0], samples[1]);
  }
  raise(magnitude, largest);
}

}  // namespace fusionloader
#endif
