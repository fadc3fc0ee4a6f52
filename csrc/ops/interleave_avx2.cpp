// AVX2: byte shuffles, which work within halves of 16 bytes.
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/interleave.hpp"
#include "simd/places.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))

namespace fusionloader {
namespace {

FUSIONLOADER_AVX2 inline __m256i load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
FUSIONLOADER_AVX2 inline __m128i load_half(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
FUSIONLOADER_AVX2 inline void store(uint8_t* to, __m256i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}
FUSIONLOADER_AVX2 inline void store_half(uint8_t* to, __m128i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

FUSIONLOADER_AVX2 inline __m256i spread(__m256i levels, const int8_t* places) {
  const __m128i half = _mm_load_si128(reinterpret_cast<const __m128i*>(places));
  return _mm256_shuffle_epi8(levels, _mm256_broadcastsi128_si256(half));
}

// 32 pixels at a time: each half makes 48 bytes.
FUSIONLOADER_AVX2 void join_rgb_avx2(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                                     size_t width, uint8_t* out) {
  size_t x = 0;
  for (; x + 32 <= width; x += 32) {
    const __m256i r = load(red + x), g = load(green + x), b = load(blue + x);
    __m256i pieces[3];
    for (int i = 0; i < 3; ++i)
      pieces[i] = _mm256_or_si256(_mm256_or_si256(spread(r, places_of_three[0].piece[i]),
                                                  spread(g, places_of_three[1].piece[i])),
                                  spread(b, places_of_three[2].piece[i]));
    store(out + 3 * x, _mm256_permute2x128_si256(pieces[0], pieces[1], 0x20));
    store(out + 3 * x + 32, _mm256_permute2x128_si256(pieces[2], pieces[0], 0x30));
    store(out + 3 * x + 64, _mm256_permute2x128_si256(pieces[1], pieces[2], 0x31));
  }
  scalar_interleave.join_rgb(red + x, green + x, blue + x, width - x, out + 3 * x);
}

FUSIONLOADER_AVX2 void join_rgbx_avx2(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                                      size_t width, uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  size_t x = 0;
  for (; x + 16 <= width; x += 16) {
    const __m128i r = load_half(red + x), g = load_half(green + x), b = load_half(blue + x);
    const __m128i low = _mm_unpacklo_epi8(r, g), high = _mm_unpackhi_epi8(r, g);
    const __m128i low_blue = _mm_unpacklo_epi8(b, zero), high_blue = _mm_unpackhi_epi8(b, zero);
    store_half(out + 4 * x, _mm_unpacklo_epi16(low, low_blue));
    store_half(out + 4 * x + 16, _mm_unpackhi_epi16(low, low_blue));
    store_half(out + 4 * x + 32, _mm_unpacklo_epi16(high, high_blue));
    store_half(out + 4 * x + 48, _mm_unpackhi_epi16(high, high_blue));
  }
  scalar_interleave.join_rgbx(red + x, green + x, blue + x, width - x, out + 4 * x);
}

// Eight pixels at a time: stores of 32 bytes, of which the next overwrites eight.
FUSIONLOADER_AVX2 inline size_t pack_avx2(const uint8_t* row, size_t width, uint8_t* out,
                                          __m128i order) {
  const __m256i together = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
  const __m256i packed = _mm256_broadcastsi128_si256(order);
  size_t x = 0;
  for (; x + 11 <= width; x += 8)
    store(out + 3 * x,
          _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(load(row + 4 * x), packed), together));
  return x;
}

FUSIONLOADER_AVX2 void pack_rgb_avx2(const uint8_t* row, size_t width, uint8_t* out) {
  const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const size_t x = pack_avx2(row, width, out, order);
  scalar_interleave.pack_rgb(row + 4 * x, width - x, out + 3 * x);
}

FUSIONLOADER_AVX2 void pack_bgr_avx2(const uint8_t* row, size_t width, uint8_t* out) {
  const __m128i order = _mm_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1);
  const size_t x = pack_avx2(row, width, out, order);
  scalar_interleave.pack_bgr(row + 4 * x, width - x, out + 3 * x);
}

// Eight pixels at a time: loads of 16 bytes, of which 12 are used.
FUSIONLOADER_AVX2 void spread_rgb_avx2(const uint8_t* row, size_t width, uint8_t* out) {
  const __m256i apart = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
  size_t x = 0;
  for (; x + 10 <= width; x += 8) {
    const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(row + 3 * x)),
                                                   load_half(row + 3 * x + 12), 1);
    store(out + 4 * x, _mm256_shuffle_epi8(pixels, apart));
  }
  scalar_interleave.spread_rgb(row + 3 * x, width - x, out + 4 * x);
}

FUSIONLOADER_AVX2 void mirror_avx2(const uint8_t* row, size_t width, uint8_t* out) {
  const __m256i backwards = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  size_t x = 0;
  for (; x + 8 <= width; x += 8)
    store(out + 4 * x, _mm256_permutevar8x32_epi32(load(row + 4 * (width - 8 - x)), backwards));
  scalar_interleave.mirror(row, width - x, out + 4 * x);
}

}  // namespace

const InterleaveKernels avx2_interleave{join_rgb_avx2, join_rgbx_avx2,  pack_rgb_avx2,
                                        pack_bgr_avx2, spread_rgb_avx2, mirror_avx2};

}  // namespace fusionloader
#endif
