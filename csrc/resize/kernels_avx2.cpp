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
inline __m128i* to_vector(void* at) { return static_cast<__m128i*>(at); }

// One output of two rows, one in each half: R G B X as int32, rounded, not clipped.
template <int fixed_groups>
FUSIONLOADER_AVX2 inline __m256i one_output(const uint8_t* first, const uint8_t* second,
                                            const TapGroup* weights, int groups) {
  const __m256i pair_01 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const __m256i pair_23 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
  __m256i upper = _mm256_setzero_si256(), lower = _mm256_set1_epi32(1 << (weight_bits - 1));
  for (int g = 0; g < (fixed_groups ? fixed_groups : groups); ++g) {
    const __m256i pixels =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(as_vector(first + 16 * g))),
                                _mm_loadu_si128(as_vector(second + 16 * g)), 1);
    const __m256i taps_01 = _mm256_shuffle_epi8(pixels, pair_01);
    const __m256i taps_23 = _mm256_shuffle_epi8(pixels, pair_23);
    const __m256i upper_sum =
        _mm256_add_epi32(_mm256_madd_epi16(taps_01, _mm256_set1_epi32(weights[g].upper_01)),
                         _mm256_madd_epi16(taps_23, _mm256_set1_epi32(weights[g].upper_23)));
    const __m256i lower_sum =
        _mm256_add_epi32(_mm256_madd_epi16(taps_01, _mm256_set1_epi32(weights[g].lower_01)),
                         _mm256_madd_epi16(taps_23, _mm256_set1_epi32(weights[g].lower_23)));
    upper = _mm256_add_epi32(upper, upper_sum);
    lower = _mm256_add_epi32(lower, lower_sum);
  }
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(upper, 11), lower), weight_bits);
}

template <int fixed_groups>
FUSIONLOADER_AVX2 void horizontal_groups(const uint8_t* const* rows, const HorizontalTaps& taps,
                                         uint8_t* const* out) {
  for (size_t x = 0; x < static_cast<size_t>(taps.outputs); x += 4) {
    for (size_t pair = 0; pair < rows_at_once; pair += 2) {
      __m256i sums[4];
      for (size_t i = 0; i < 4; ++i) {
        const uint32_t offset = taps.offsets[x + i];
        sums[i] = one_output<fixed_groups>(rows[pair] + offset, rows[pair + 1] + offset,
                                           taps.output(x + i), taps.groups);
      }
      // Packing works within halves: each half comes out as four pixels of its row, in order.
      const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(sums[0], sums[1]),
                                                 _mm256_packus_epi32(sums[2], sums[3]));
      _mm_storeu_si128(to_vector(out[pair] + 4 * x), _mm256_castsi256_si128(packed));
      _mm_storeu_si128(to_vector(out[pair + 1] + 4 * x), _mm256_extracti128_si256(packed, 1));
    }
  }
}

void horizontal_avx2(const uint8_t* const* rows, const HorizontalTaps& taps, uint8_t* const* out) {
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
    const __m256i sum_0 =
        _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(upper_0, 11), lower_0), weight_bits);
    const __m256i sum_1 =
        _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(upper_1, 11), lower_1), weight_bits);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(sum_0, sum_1), 0xD8);
    _mm_storeu_si128(to_vector(out + i), _mm_packus_epi16(_mm256_castsi256_si128(packed),
                                                          _mm256_extracti128_si256(packed, 1)));
  }
}

}  // namespace

// Eight pixels at a time.
FUSIONLOADER_AVX2 void split_planes_avx2(const uint8_t* row, size_t width, uint8_t* out,
                                         size_t plane) {
  const __m256i by_channel = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (size_t x = 0; x < width; x += 8) {
    __m256i pixels;
    std::memcpy(&pixels, row + 4 * x, sizeof pixels);
    const __m256i planes =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, by_channel), join);
    const __m128i red_green = _mm256_castsi256_si128(planes);
    _mm_storel_epi64(to_vector(out + x), red_green);
    _mm_storel_epi64(to_vector(out + plane + x), _mm_unpackhi_epi64(red_green, red_green));
    _mm_storel_epi64(to_vector(out + 2 * plane + x), _mm256_extracti128_si256(planes, 1));
  }
}

const ResizeKernels avx2_kernels{prepare_packed, horizontal_avx2, vertical_avx2, split_planes_avx2};

}  // namespace fusionloader
#endif
