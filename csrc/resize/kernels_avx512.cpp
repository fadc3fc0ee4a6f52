// AVX-512 (F, BW, VL): the AVX2 kernels' arithmetic with both parts of a weight in one register.
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

// Sums of one output in four quarters of R G B 0: upper parts of taps 0, 1 and of taps 2, 3 of each
// group (shifted to their place), lower parts of the same.
template <int fixed_groups>
FUSIONLOADER_AVX512 inline __m512i sum_taps(const uint8_t* row, const HorizontalTaps& taps, size_t x) {
  const __m256i pair_up_half =
      _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1, 8, -1, 12, -1, 9,
                       -1, 13, -1, 10, -1, 14, -1, -1, -1, -1, -1);
  const __m512i pair_up = _mm512_broadcast_i64x4(pair_up_half);
  const uint8_t* pixels = row + taps.offsets[x];
  const int groups = fixed_groups ? fixed_groups : taps.groups;
  const int16_t* weights = &taps.packed[x * static_cast<size_t>(groups) * 32];
  __m512i sum = _mm512_setzero_si512();
  for (int g = 0; g < groups; ++g) {
    __m128i four;
    std::memcpy(&four, pixels + 16 * g, sizeof four);
    const __m512i pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(four), pair_up);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_loadu_si512(weights + 32 * g)));
  }
  const __m512i places = _mm512_setr_epi32(11, 11, 11, 11, 11, 11, 11, 11, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_sllv_epi32(sum, places);
}

FUSIONLOADER_AVX512 inline __m512i add_halves(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
}

FUSIONLOADER_AVX512 inline __m128i to_bytes(__m512i sums) {
  const __m512i rounded = _mm512_srai_epi32(sums, weight_bits);
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(rounded, _mm512_setzero_si512()));
}

template <int fixed_groups>
FUSIONLOADER_AVX512 void horizontal_groups(const uint8_t* row, const HorizontalTaps& taps,
                                           uint8_t* out, size_t plane) {
  const __m512i half = _mm512_set1_epi32(1 << (weight_bits - 1));
  const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (size_t x = 0; x < static_cast<size_t>(taps.outputs); x += 4) {
    const __m512i first = add_halves(sum_taps<fixed_groups>(row, taps, x),
                                     sum_taps<fixed_groups>(row, taps, x + 1));
    const __m512i second = add_halves(sum_taps<fixed_groups>(row, taps, x + 2),
                                      sum_taps<fixed_groups>(row, taps, x + 3));
    const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88),
                                          _mm512_shuffle_i32x4(first, second, 0xDD));
    const __m128i planes = _mm_shuffle_epi8(to_bytes(_mm512_add_epi32(sums, half)), by_channel);
    const int red = _mm_extract_epi32(planes, 0);
    const int green = _mm_extract_epi32(planes, 1);
    const int blue = _mm_extract_epi32(planes, 2);
    std::memcpy(out + x, &red, 4);
    std::memcpy(out + plane + x, &green, 4);
    std::memcpy(out + 2 * plane + x, &blue, 4);
  }
}

void horizontal_avx512(const uint8_t* row, const HorizontalTaps& taps, uint8_t* out, size_t plane) {
  switch (taps.groups) {
    case 1: return horizontal_groups<1>(row, taps, out, plane);
    case 2: return horizontal_groups<2>(row, taps, out, plane);
    case 3: return horizontal_groups<3>(row, taps, out, plane);
    default: return horizontal_groups<0>(row, taps, out, plane);
  }
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
    std::memcpy(out + i, &low, sizeof low);
    std::memcpy(out + i + 16, &high, sizeof high);
  }
}

}  // namespace

const ResizeKernels avx512_kernels{prepare_packed, horizontal_avx512, vertical_avx512};

}  // namespace fusionloader
#endif
