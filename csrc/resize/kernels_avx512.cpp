// AVX-512 (F, BW, VL): the AVX2 kernels, twice as wide.
#if defined(__x86_64__)
// GCC 12 takes the undefined operands inside its own AVX-512 intrinsics for uninitialised values.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstring>

#include "resize/kernels.hpp"

#define FUSIONLOADER_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace fusionloader {
namespace {

constexpr int most_vertical_pairs = 256;

FUSIONLOADER_AVX512 inline __m128i load(const uint8_t* from) {
  __m128i bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

FUSIONLOADER_AVX512 inline void store(uint8_t* to, __m128i bytes) {
  std::memcpy(to, &bytes, sizeof bytes);
}

// One output of four rows, one in each quarter: R G B X as int32, rounded, not clipped.
template <int fixed_groups>
FUSIONLOADER_AVX512 inline __m512i one_output(const uint8_t* const* rows, size_t offset,
                                              const TapGroup* weights, int groups) {
  const __m512i pair_01 =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const __m512i pair_23 = _mm512_broadcast_i32x4(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
  __m512i upper = _mm512_setzero_si512(), lower = _mm512_set1_epi32(1 << (weight_bits - 1));
  for (int g = 0; g < (fixed_groups ? fixed_groups : groups); ++g, offset += 16) {
    __m512i pixels = _mm512_castsi128_si512(load(rows[0] + offset));
    pixels = _mm512_inserti32x4(pixels, load(rows[1] + offset), 1);
    pixels = _mm512_inserti32x4(pixels, load(rows[2] + offset), 2);
    pixels = _mm512_inserti32x4(pixels, load(rows[3] + offset), 3);
    const __m512i taps_01 = _mm512_shuffle_epi8(pixels, pair_01);
    const __m512i taps_23 = _mm512_shuffle_epi8(pixels, pair_23);
    const __m512i upper_sum =
        _mm512_add_epi32(_mm512_madd_epi16(taps_01, _mm512_set1_epi32(weights[g].upper_01)),
                         _mm512_madd_epi16(taps_23, _mm512_set1_epi32(weights[g].upper_23)));
    const __m512i lower_sum =
        _mm512_add_epi32(_mm512_madd_epi16(taps_01, _mm512_set1_epi32(weights[g].lower_01)),
                         _mm512_madd_epi16(taps_23, _mm512_set1_epi32(weights[g].lower_23)));
    upper = _mm512_add_epi32(upper, upper_sum);
    lower = _mm512_add_epi32(lower, lower_sum);
  }
  return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 11), lower), weight_bits);
}

template <int fixed_groups>
FUSIONLOADER_AVX512 void horizontal_groups(const uint8_t* const* rows, const HorizontalTaps& taps,
                                           uint8_t* const* out) {
  const uint8_t* const four_rows[rows_at_once] = {rows[0], rows[1], rows[2], rows[3]};
  uint8_t* const four_out[rows_at_once] = {out[0], out[1], out[2], out[3]};
  for (size_t x = 0; x < static_cast<size_t>(taps.outputs); x += 4) {
    __m512i sums[4];
    for (size_t i = 0; i < 4; ++i)
      sums[i] =
          one_output<fixed_groups>(four_rows, taps.offsets[x + i], taps.output(x + i), taps.groups);
    // Packing works within quarters: each comes out as four pixels of its row, in order.
    const __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(sums[0], sums[1]),
                                               _mm512_packus_epi32(sums[2], sums[3]));
    store(four_out[0] + 4 * x, _mm512_castsi512_si128(packed));
    store(four_out[1] + 4 * x, _mm512_extracti32x4_epi32(packed, 1));
    store(four_out[2] + 4 * x, _mm512_extracti32x4_epi32(packed, 2));
    store(four_out[3] + 4 * x, _mm512_extracti32x4_epi32(packed, 3));
  }
}

void horizontal_avx512(const uint8_t* const* rows, const HorizontalTaps& taps,
                       uint8_t* const* out) {
  switch (taps.groups) {
    case 1:
      return horizontal_groups<1>(rows, taps, out);
    case 2:
      return horizontal_groups<2>(rows, taps, out);
    case 3:
      return horizontal_groups<3>(rows, taps, out);
    default:
      return horizontal_groups<0>(rows, taps, out);
  }
}

FUSIONLOADER_AVX512 inline __m128i to_bytes(__m512i sums) {
  const __m512i rounded = _mm512_srai_epi32(sums, weight_bits);
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(rounded, _mm512_setzero_si512()));
}

FUSIONLOADER_AVX512 void vertical_avx512(const uint8_t* const* rows, const int32_t* weights,
                                         int count, uint8_t* out, size_t size) {
  const int pairs = (count + 1) / 2;
  if (pairs > most_vertical_pairs) return scalar_kernels.vertical(rows, weights, count, out, size);
  int32_t upper_pairs[most_vertical_pairs], lower_pairs[most_vertical_pairs];
  for (int p = 0; p < pairs; ++p) {
    const int32_t a = weights[2 * p], b = 2 * p + 1 < count ? weights[2 * p + 1] : 0;
    upper_pairs[p] = static_cast<int32_t>(static_cast<uint32_t>(a >> 11 & 0xFFFF) |
                                          static_cast<uint32_t>(b >> 11) << 16);
    lower_pairs[p] = (a & 2047) | (b & 2047) << 16;
  }
  const __m512i half = _mm512_set1_epi32(1 << (weight_bits - 1));
  for (size_t i = 0; i < size; i += 32) {
    __m512i upper_0 = _mm512_setzero_si512(), upper_1 = upper_0, lower_0 = half, lower_1 = half;
    for (int p = 0; p < pairs; ++p) {
      __m256i a, b;
      std::memcpy(&a, rows[2 * p] + i, sizeof a);
      std::memcpy(&b, rows[2 * p + 1 < count ? 2 * p + 1 : 2 * p] + i, sizeof b);
      const __m512i first = _mm512_cvtepu8_epi16(_mm256_unpacklo_epi8(a, b));
      const __m512i second = _mm512_cvtepu8_epi16(_mm256_unpackhi_epi8(a, b));
      const __m512i upper = _mm512_set1_epi32(upper_pairs[p]);
      const __m512i lower = _mm512_set1_epi32(lower_pairs[p]);
      upper_0 = _mm512_add_epi32(upper_0, _mm512_madd_epi16(first, upper));
      lower_0 = _mm512_add_epi32(lower_0, _mm512_madd_epi16(first, lower));
      upper_1 = _mm512_add_epi32(upper_1, _mm512_madd_epi16(second, upper));
      lower_1 = _mm512_add_epi32(lower_1, _mm512_madd_epi16(second, lower));
    }
    // Bytes 0..7 and 16..23, then bytes 8..15 and 24..31: the order that unpacking left.
    const __m128i even = to_bytes(_mm512_add_epi32(_mm512_slli_epi32(upper_0, 11), lower_0));
    const __m128i odd = to_bytes(_mm512_add_epi32(_mm512_slli_epi32(upper_1, 11), lower_1));
    const __m128i low = _mm_unpacklo_epi64(even, odd), high = _mm_unpackhi_epi64(even, odd);
    store(out + i, low);
    store(out + i + 16, high);
  }
}

}  // namespace

const ResizeKernels avx512_kernels{prepare_packed, horizontal_avx512, vertical_avx512,
                                   split_planes_avx2};

}  // namespace fusionloader
#endif
