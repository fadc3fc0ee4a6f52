// AVX2: a weight is split into an upper part (weight >> 11, signed) and a lower one (11 bits), so
// that 16-bit multiply-adds are exact; the sums are put together in 32 bits.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "resize/kernels.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))

namespace fusionloader {
namespace {

constexpr int most_vertical_pairs = 256;

inline const __m128i* as_vector(const void* at) { return static_cast<const __m128i*>(at); }
inline const __m256i* as_wide(const void* at) { return static_cast<const __m256i*>(at); }

// Sums of one output: four int32 R G B 0 in each half, of taps 0, 1 and of taps 2, 3 of each group.
template <int fixed_groups>
FUSIONLOADER_AVX2 inline __m256i sum_taps(const uint8_t* pixels, const int16_t* weights,
                                          int groups) {
  const __m256i pair_up = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1,
                                           8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, -1, -1, -1, -1);
  __m256i upper = _mm256_setzero_si256(), lower = upper;
  for (int g = 0; g < (fixed_groups ? fixed_groups : groups); ++g) {
    const __m128i four = _mm_loadu_si128(as_vector(pixels + 16 * g));
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pair_up);
    const int16_t* group = weights + 32 * g;
    upper = _mm256_add_epi32(upper, _mm256_madd_epi16(pairs, _mm256_loadu_si256(as_wide(group))));
    lower = _mm256_add_epi32(lower, _mm256_madd_epi16(pairs, _mm256_loadu_si256(as_wide(group + 16))));
  }
  return _mm256_add_epi32(_mm256_slli_epi32(upper, 11), lower);
}

// Two outputs, finished: R G B 0 of the first, then of the second, unclipped.
template <int fixed_groups>
FUSIONLOADER_AVX2 inline __m256i two_outputs(const uint8_t* row, const HorizontalTaps& taps,
                                             size_t x) {
  const auto step = static_cast<size_t>(taps.groups) * 32;
  const __m256i a = sum_taps<fixed_groups>(row + taps.offsets[x], &taps.packed[x * step], taps.groups);
  const __m256i b =
      sum_taps<fixed_groups>(row + taps.offsets[x + 1], &taps.packed[(x + 1) * step], taps.groups);
  const __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                       _mm256_permute2x128_si256(a, b, 0x31));
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (weight_bits - 1))),
                           weight_bits);
}

FUSIONLOADER_AVX2 inline void store_four(uint8_t* at, int32_t bytes) {
  std::memcpy(at, &bytes, sizeof bytes);
}

template <int fixed_groups>
FUSIONLOADER_AVX2 void horizontal_groups(const uint8_t* row, const HorizontalTaps& taps,
                                         uint8_t* out, size_t plane) {
  const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (size_t x = 0; x < static_cast<size_t>(taps.outputs); x += 4) {
    const __m256i packed = _mm256_packus_epi32(two_outputs<fixed_groups>(row, taps, x),
                                               two_outputs<fixed_groups>(row, taps, x + 2));
    const __m256i in_order = _mm256_permute4x64_epi64(packed, 0xD8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(in_order),
                                           _mm256_extracti128_si256(in_order, 1));
    const __m128i planes = _mm_shuffle_epi8(bytes, by_channel);
    store_four(out + x, _mm_extract_epi32(planes, 0));
    store_four(out + plane + x, _mm_extract_epi32(planes, 1));
    store_four(out + 2 * plane + x, _mm_extract_epi32(planes, 2));
  }
}

void horizontal_avx2(const uint8_t* row, const HorizontalTaps& taps, uint8_t* out, size_t plane) {
  switch (taps.groups) {
    case 1: return horizontal_groups<1>(row, taps, out, plane);
    case 2: return horizontal_groups<2>(row, taps, out, plane);
    case 3: return horizontal_groups<3>(row, taps, out, plane);
    default: return horizontal_groups<0>(row, taps, out, plane);
  }
}

FUSIONLOADER_AVX2 void vertical_avx2(const uint8_t* const* rows, const int32_t* weights, int count,
                                     uint8_t* out, size_t size) {
  const int pairs = (count + 1) / 2;
  if (pairs > most_vertical_pairs) return scalar_kernels.vertical(rows, weights, count, out, size);
  int32_t upper_pairs[most_vertical_pairs], lower_pairs[most_vertical_pairs];
  for (int p = 0; p < pairs; ++p) {
    const int32_t a = weights[2 * p], b = 2 * p + 1 < count ? weights[2 * p + 1] : 0;
    upper_pairs[p] = static_cast<int32_t>(static_cast<uint32_t>(a >> 11 & 0xFFFF) |
                                          static_cast<uint32_t>(b >> 11) << 16);
    lower_pairs[p] = (a & 2047) | (b & 2047) << 16;
  }
  const __m256i half = _mm256_set1_epi32(1 << (weight_bits - 1));
  for (size_t i = 0; i < size; i += 16) {
    __m256i upper_0 = _mm256_setzero_si256(), upper_1 = upper_0, lower_0 = half, lower_1 = half;
    for (int p = 0; p < pairs; ++p) {
      const __m128i a = _mm_loadu_si128(as_vector(rows[2 * p] + i));
      const __m128i b = _mm_loadu_si128(as_vector(rows[2 * p + 1 < count ? 2 * p + 1 : 2 * p] + i));
      const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
      const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
      const __m256i upper = _mm256_set1_epi32(upper_pairs[p]);
      const __m256i lower = _mm256_set1_epi32(lower_pairs[p]);
      upper_0 = _mm256_add_epi32(upper_0, _mm256_madd_epi16(first, upper));
      lower_0 = _mm256_add_epi32(lower_0, _mm256_madd_epi16(first, lower));
      upper_1 = _mm256_add_epi32(upper_1, _mm256_madd_epi16(second, upper));
      lower_1 = _mm256_add_epi32(lower_1, _mm256_madd_epi16(second, lower));
    }
    const __m256i sum_0 = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_slli_epi32(upper_0, 11), lower_0), weight_bits);
    const __m256i sum_1 = _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_slli_epi32(upper_1, 11), lower_1), weight_bits);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(sum_0, sum_1), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_packus_epi16(_mm256_castsi256_si128(packed),
                                      _mm256_extracti128_si256(packed, 1)));
  }
}

}  // namespace

const ResizeKernels avx2_kernels{prepare_packed, horizontal_avx2, vertical_avx2};

}  // namespace fusionloader
#endif
