// AVX-512 (F, BW, VL, VNNI): four rows at a time, or 32 bytes of one; multiply-adds accumulate.
#if defined(__x86_64__)
#include <cstring>

#include "resize/kernels.hpp"
#include "simd/avx512.hpp"
#include "simd/inline.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace fusionloader {
namespace {

using Vector = __m512i;

constexpr size_t rows_per_vector = 4, vectors_together = 1, parts = 2;

FUSIONLOADER_TARGET inline __m128i load(const void* from) {
  __m128i bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}
FUSIONLOADER_TARGET inline void store(uint8_t* to, __m128i bytes) {
  std::memcpy(to, &bytes, sizeof bytes);
}

FUSIONLOADER_TARGET inline Vector filled_32(int32_t value) { return _mm512_set1_epi32(value); }
FUSIONLOADER_TARGET inline Vector add_32(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector shift_left_32(Vector a, unsigned bits) {
  return _mm512_slli_epi32(a, bits);
}
FUSIONLOADER_TARGET inline Vector shift_right_signed_32(Vector a, unsigned bits) {
  return _mm512_srai_epi32(a, bits);
}
FUSIONLOADER_TARGET inline Vector add_products(Vector sum, Vector a, Vector b) {
  return _mm512_dpwssd_epi32(sum, a, b);
}
FUSIONLOADER_TARGET inline Vector pack_32(Vector a, Vector b) { return _mm512_packs_epi32(a, b); }
FUSIONLOADER_TARGET inline Vector pack_16_unsigned(Vector a, Vector b) {
  return _mm512_packus_epi16(a, b);
}
FUSIONLOADER_TARGET inline Vector shuffled_rows(Vector a, const int8_t* order) {
  return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(load(order)));
}
FUSIONLOADER_TARGET inline Vector load_rows(const uint8_t* const* rows, size_t at) {
  Vector pixels = _mm512_castsi128_si512(load(rows[0] + at));
  pixels = _mm512_inserti32x4(pixels, load(rows[1] + at), 1);
  pixels = _mm512_inserti32x4(pixels, load(rows[2] + at), 2);
  return _mm512_inserti32x4(pixels, load(rows[3] + at), 3);
}
FUSIONLOADER_TARGET inline void store_rows(uint8_t* const* rows, size_t at, Vector bytes) {
  store(rows[0] + at, _mm512_castsi512_si128(bytes));
  store(rows[1] + at, _mm512_extracti32x4_epi32(bytes, 1));
  store(rows[2] + at, _mm512_extracti32x4_epi32(bytes, 2));
  store(rows[3] + at, _mm512_extracti32x4_epi32(bytes, 3));
}
// Unpacking leaves bytes 0..7 and 16..23 in the first, 8..15 and 24..31 in the second.
FUSIONLOADER_TARGET inline void row_pairs(const uint8_t* first, const uint8_t* second,
                                          Vector (&pairs)[parts]) {
  __m256i a, b;
  std::memcpy(&a, first, sizeof a);
  std::memcpy(&b, second, sizeof b);
  pairs[0] = _mm512_cvtepu8_epi16(_mm256_unpacklo_epi8(a, b));
  pairs[1] = _mm512_cvtepu8_epi16(_mm256_unpackhi_epi8(a, b));
}
FUSIONLOADER_TARGET inline __m128i to_bytes(Vector values) {
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(values, _mm512_setzero_si512()));
}
FUSIONLOADER_TARGET inline void store_row(uint8_t* to, const Vector (&values)[parts]) {
  const __m128i even = to_bytes(values[0]), odd = to_bytes(values[1]);
  store(to, _mm_unpacklo_epi64(even, odd));
  store(to + 16, _mm_unpackhi_epi64(even, odd));
}

#include "resize/weighing_split.hpp"
// The weighing comes first.
#include "resize/kernels_body.hpp"

}  // namespace

const ResizeKernels avx512_kernels{prepare_pairs, horizontal, vertical, split_planes_128};

}  // namespace fusionloader
#endif
