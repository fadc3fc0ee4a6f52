#pragma once
// vector128.hpp's operations for x86.
#include <smmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/places.hpp"

#define FUSIONLOADER_128 __attribute__((target("sse4.1")))

namespace fusionloader {

using Vector128 = __m128i;

FUSIONLOADER_128 inline Vector128 load(const void* from) {
  return _mm_loadu_si128(static_cast<const Vector128*>(from));
}
FUSIONLOADER_128 inline void store(void* to, Vector128 a) {
  _mm_storeu_si128(static_cast<Vector128*>(to), a);
}
FUSIONLOADER_128 inline void store_two(void* first, void* second, Vector128 a) {
  _mm_storel_epi64(static_cast<Vector128*>(first), a);
  _mm_storeh_pd(static_cast<double*>(second), _mm_castsi128_pd(a));
}

FUSIONLOADER_128 inline Vector128 filled_8(int value) {
  return _mm_set1_epi8(static_cast<char>(value));
}
FUSIONLOADER_128 inline Vector128 filled_16(int value) {
  return _mm_set1_epi16(static_cast<short>(value));
}
FUSIONLOADER_128 inline Vector128 filled_32(int value) { return _mm_set1_epi32(value); }

FUSIONLOADER_128 inline Vector128 add_16(Vector128 a, Vector128 b) { return _mm_add_epi16(a, b); }
FUSIONLOADER_128 inline Vector128 add_32(Vector128 a, Vector128 b) { return _mm_add_epi32(a, b); }
FUSIONLOADER_128 inline Vector128 subtract_8(Vector128 a, Vector128 b) {
  return _mm_sub_epi8(a, b);
}
FUSIONLOADER_128 inline Vector128 subtract_16(Vector128 a, Vector128 b) {
  return _mm_sub_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 subtract_32(Vector128 a, Vector128 b) {
  return _mm_sub_epi32(a, b);
}
FUSIONLOADER_128 inline Vector128 multiply_16(Vector128 a, Vector128 b) {
  return _mm_mullo_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 magnitude_16(Vector128 a) { return _mm_abs_epi16(a); }
FUSIONLOADER_128 inline Vector128 maximum_32(Vector128 a, Vector128 b) {
  return _mm_max_epi32(a, b);
}
FUSIONLOADER_128 inline int32_t largest_32(Vector128 a) {
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
  a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1));
  return _mm_cvtsi128_si32(a);
}
FUSIONLOADER_128 inline Vector128 shift_right_16(Vector128 a, int bits) {
  return _mm_srli_epi16(a, bits);
}
FUSIONLOADER_128 inline Vector128 shift_right_signed_16(Vector128 a, int bits) {
  return _mm_srai_epi16(a, bits);
}
FUSIONLOADER_128 inline Vector128 shift_right_signed_32(Vector128 a, int bits) {
  return _mm_srai_epi32(a, bits);
}

FUSIONLOADER_128 inline Vector128 pack_32(Vector128 a, Vector128 b) {
  return _mm_packs_epi32(a, b);
}
FUSIONLOADER_128 inline Vector128 pack_16(Vector128 a, Vector128 b) {
  return _mm_packs_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 pack_16_unsigned(Vector128 a, Vector128 b) {
  return _mm_packus_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 interleave_low_32(Vector128 a, Vector128 b) {
  return _mm_unpacklo_epi32(a, b);
}
FUSIONLOADER_128 inline Vector128 interleave_high_32(Vector128 a, Vector128 b) {
  return _mm_unpackhi_epi32(a, b);
}
FUSIONLOADER_128 inline Vector128 interleave_low_64(Vector128 a, Vector128 b) {
  return _mm_unpacklo_epi64(a, b);
}
FUSIONLOADER_128 inline Vector128 interleave_high_64(Vector128 a, Vector128 b) {
  return _mm_unpackhi_epi64(a, b);
}
FUSIONLOADER_128 inline Vector128 shuffled(Vector128 a, Vector128 order) {
  return _mm_shuffle_epi8(a, order);
}
FUSIONLOADER_128 inline Vector128 low_words(Vector128 bytes) { return _mm_cvtepu8_epi16(bytes); }
FUSIONLOADER_128 inline Vector128 high_words(Vector128 bytes) {
  return _mm_unpackhi_epi8(bytes, _mm_setzero_si128());
}

FUSIONLOADER_128 inline Vector128 multiply_add(Vector128 a, Vector128 b) {
  return _mm_madd_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 doubled_product_high(Vector128 a, int factor) {
  return _mm_mulhi_epi16(_mm_add_epi16(a, a), filled_16(factor));
}
FUSIONLOADER_128 inline Vector128 rounded_sum_of_products(Vector128 a, int of_a, Vector128 b,
                                                          int of_b) {
  const Vector128 factors =
      filled_32(static_cast<int>((of_a & 0xFFFF) | static_cast<unsigned>(of_b) << 16));
  const Vector128 half = filled_32(1 << 15);
  const Vector128 low = _mm_madd_epi16(_mm_unpacklo_epi16(a, b), factors);
  const Vector128 high = _mm_madd_epi16(_mm_unpackhi_epi16(a, b), factors);
  return pack_32(shift_right_signed_32(add_32(low, half), 16),
                 shift_right_signed_32(add_32(high, half), 16));
}
FUSIONLOADER_128 inline Vector128 three_and_one_low(Vector128 a, Vector128 b) {
  return _mm_maddubs_epi16(_mm_unpacklo_epi8(a, b), filled_16(3 | 1 << 8));
}
FUSIONLOADER_128 inline Vector128 three_and_one_high(Vector128 a, Vector128 b) {
  return _mm_maddubs_epi16(_mm_unpackhi_epi8(a, b), filled_16(3 | 1 << 8));
}

FUSIONLOADER_128 inline Vector128 alternated(Vector128 a, Vector128 b) {
  return _mm_or_si128(a, _mm_slli_epi16(b, 8));
}
FUSIONLOADER_128 inline void store_alternated(uint8_t* to, Vector128 a, Vector128 b, Vector128 c,
                                              Vector128 d) {
  const Vector128 low_ab = _mm_unpacklo_epi8(a, b), high_ab = _mm_unpackhi_epi8(a, b);
  const Vector128 low_cd = _mm_unpacklo_epi8(c, d), high_cd = _mm_unpackhi_epi8(c, d);
  store(to, _mm_unpacklo_epi16(low_ab, low_cd));
  store(to + 16, _mm_unpackhi_epi16(low_ab, low_cd));
  store(to + 32, _mm_unpacklo_epi16(high_ab, high_cd));
  store(to + 48, _mm_unpackhi_epi16(high_ab, high_cd));
}

FUSIONLOADER_128 inline void store_alternated(uint8_t* to, Vector128 a, Vector128 b, Vector128 c) {
  for (int piece = 0; piece < 3; ++piece)
    store(to + 16 * piece,
          _mm_or_si128(_mm_or_si128(shuffled(a, load(places_of_three[0].piece[piece])),
                                    shuffled(b, load(places_of_three[1].piece[piece]))),
                       shuffled(c, load(places_of_three[2].piece[piece]))));
}

struct Alternated {
  Vector128 a, b, c;
};
FUSIONLOADER_128 inline Alternated load_alternated(const uint8_t* from) {
  const Vector128 apart = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const Vector128 first = shuffled(load(from), apart), second = shuffled(load(from + 16), apart);
  const Vector128 third = shuffled(load(from + 32), apart),
                  fourth = shuffled(load(from + 48), apart);
  const Vector128 ab = interleave_low_32(first, second),
                  ab_behind = interleave_low_32(third, fourth);
  return {interleave_low_64(ab, ab_behind), interleave_high_64(ab, ab_behind),
          interleave_low_64(interleave_high_32(first, second), interleave_high_32(third, fourth))};
}

FUSIONLOADER_128 inline Vector128 add_8(Vector128 a, Vector128 b) { return _mm_add_epi8(a, b); }
FUSIONLOADER_128 inline Vector128 minimum_16(Vector128 a, Vector128 b) {
  return _mm_min_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 equal_16(Vector128 a, Vector128 b) {
  return _mm_cmpeq_epi16(a, b);
}
FUSIONLOADER_128 inline Vector128 either(Vector128 a, Vector128 b) { return _mm_or_si128(a, b); }
FUSIONLOADER_128 inline Vector128 chosen(Vector128 which, Vector128 a, Vector128 b) {
  return _mm_blendv_epi8(b, a, which);
}
FUSIONLOADER_128 inline Vector128 load_32(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _mm_cvtsi32_si128(bits);
}
FUSIONLOADER_128 inline void store_32(void* to, Vector128 a) {
  const int32_t bits = _mm_cvtsi128_si32(a);
  std::memcpy(to, &bits, sizeof bits);
}
template <int bytes>
FUSIONLOADER_128 inline Vector128 moved_up(Vector128 a) {
  return _mm_slli_si128(a, bytes);
}
FUSIONLOADER_128 inline Vector128 last_of_four_32(Vector128 a) {
  return _mm_shuffle_epi32(a, 0xFF);
}

// For kernels of x86 alone.
FUSIONLOADER_128 inline Vector128 shift_left_32(Vector128 a, int bits) {
  return _mm_slli_epi32(a, bits);
}
FUSIONLOADER_128 inline Vector128 interleave_low_8(Vector128 a, Vector128 b) {
  return _mm_unpacklo_epi8(a, b);
}
FUSIONLOADER_128 inline Vector128 interleave_high_8(Vector128 a, Vector128 b) {
  return _mm_unpackhi_epi8(a, b);
}

}  // namespace fusionloader
