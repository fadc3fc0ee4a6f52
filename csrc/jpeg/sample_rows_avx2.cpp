// AVX2: 32 samples at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "jpeg/sample_rows.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2")))

namespace fusionloader {
namespace {

using Vector = __m256i;

FUSIONLOADER_TARGET inline Vector load(const uint8_t* from) {
  Vector bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}
FUSIONLOADER_TARGET inline void store(uint8_t* to, Vector bytes) {
  std::memcpy(to, &bytes, sizeof bytes);
}
// So that interleaving the halves of each lane leaves the samples in order: 0 to 15, 16 to 31.
FUSIONLOADER_TARGET inline Vector load_for_alternating(const uint8_t* from) {
  return _mm256_permute4x64_epi64(load(from), 0xD8);
}

FUSIONLOADER_TARGET inline Vector filled_16(int value) {
  return _mm256_set1_epi16(static_cast<short>(value));
}
FUSIONLOADER_TARGET inline Vector add_16(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
FUSIONLOADER_TARGET inline Vector subtract_16(Vector a, Vector b) { return _mm256_sub_epi16(a, b); }
FUSIONLOADER_TARGET inline Vector shift_right_16(Vector a, int bits) {
  return _mm256_srli_epi16(a, bits);
}
FUSIONLOADER_TARGET inline Vector shift_right_signed_16(Vector a, int bits) {
  return _mm256_srai_epi16(a, bits);
}
FUSIONLOADER_TARGET inline Vector pack_16_unsigned(Vector a, Vector b) {
  return _mm256_packus_epi16(a, b);
}
FUSIONLOADER_TARGET inline Vector alternated(Vector even, Vector odd) {
  return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
}
// Of 32 bytes, in the order that packing puts right: 0 to 7 and 16 to 23; 8 to 15 and 24 to 31.
FUSIONLOADER_TARGET inline Vector low_words(Vector bytes) {
  return _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());
}
FUSIONLOADER_TARGET inline Vector high_words(Vector bytes) {
  return _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256());
}
FUSIONLOADER_TARGET inline Vector three_and_one_low(Vector a, Vector b) {
  return _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), filled_16(3 | 1 << 8));
}
FUSIONLOADER_TARGET inline Vector three_and_one_high(Vector a, Vector b) {
  return _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), filled_16(3 | 1 << 8));
}
FUSIONLOADER_TARGET inline Vector doubled_product_high(Vector a, int factor) {
  return _mm256_mulhi_epi16(_mm256_add_epi16(a, a), filled_16(factor));
}

FUSIONLOADER_TARGET inline Vector rounded_high(Vector sums) {
  return _mm256_srai_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(1 << 15)), 16);
}
FUSIONLOADER_TARGET inline Vector rounded_sum_of_products(Vector a, int of_a, Vector b, int of_b) {
  const Vector factors =
      _mm256_set1_epi32(static_cast<int>((of_a & 0xFFFF) | static_cast<unsigned>(of_b) << 16));
  const Vector low = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factors);
  const Vector high = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factors);
  return _mm256_packs_epi32(rounded_high(low), rounded_high(high));
}

// 32 pixels from four bytes each; the last is not written where it means nothing.
FUSIONLOADER_TARGET inline void store_pixels(uint8_t* out, size_t count, Vector red, Vector green,
                                             Vector blue) {
  const Vector full = _mm256_set1_epi8(-1);
  const Vector low_rg = _mm256_unpacklo_epi8(red, green);
  const Vector high_rg = _mm256_unpackhi_epi8(red, green);
  const Vector low_bx = _mm256_unpacklo_epi8(blue, full);
  const Vector high_bx = _mm256_unpackhi_epi8(blue, full);
  const Vector a = _mm256_unpacklo_epi16(low_rg, low_bx);    // pixels 0 to 3, 16 to 19
  const Vector b = _mm256_unpackhi_epi16(low_rg, low_bx);    // 4 to 7, 20 to 23
  const Vector c = _mm256_unpacklo_epi16(high_rg, high_bx);  // 8 to 11, 24 to 27
  const Vector d = _mm256_unpackhi_epi16(high_rg, high_bx);  // 12 to 15, 28 to 31
  store(out, _mm256_permute2x128_si256(a, b, 0x20));
  store(out + 32, _mm256_permute2x128_si256(c, d, 0x20));
  if (count <= 16) return;
  store(out + 64, _mm256_permute2x128_si256(a, b, 0x31));
  store(out + 96, _mm256_permute2x128_si256(c, d, 0x31));
}

#include "jpeg/sample_rows_body.hpp"

}  // namespace

const SampleKernels avx2_sample_kernels{widen, blend, blend_and_widen, to_rgbx, grey_to_rgbx};

}  // namespace fusionloader
#endif
