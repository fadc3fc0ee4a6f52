// AVX2: 32 samples at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "jpeg/sample_rows.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))

namespace fusionloader {
namespace {

FUSIONLOADER_AVX2 inline __m256i load(const uint8_t* from) {
  __m256i bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

FUSIONLOADER_AVX2 inline void store(uint8_t* to, __m256i bytes) {
  std::memcpy(to, &bytes, sizeof bytes);
}

// So that interleaving the halves of each lane leaves the samples in order: 0 to 15, 16 to 31.
FUSIONLOADER_AVX2 inline __m256i load_for_interleaving(const uint8_t* from) {
  return _mm256_permute4x64_epi64(load(from), 0xD8);
}

struct Sums {
  __m256i low, high;
};

// 3 * near + far, 16 bits each.
FUSIONLOADER_AVX2 inline Sums weighed(__m256i near, __m256i far) {
  const __m256i weights = _mm256_set1_epi16(3 | 1 << 8);
  return {_mm256_maddubs_epi16(_mm256_unpacklo_epi8(near, far), weights),
          _mm256_maddubs_epi16(_mm256_unpackhi_epi8(near, far), weights)};
}

FUSIONLOADER_AVX2 inline Sums weighed_rows(const uint8_t* near, const uint8_t* far) {
  return weighed(load_for_interleaving(near), load_for_interleaving(far));
}

// Sums of an even and an odd output each, 16 bits, to the outputs side by side.
template <int shift>
FUSIONLOADER_AVX2 inline __m256i side_by_side(__m256i even, __m256i odd, int even_bias,
                                              int odd_bias) {
  even = _mm256_srli_epi16(_mm256_add_epi16(even, _mm256_set1_epi16(static_cast<short>(even_bias))),
                           shift);
  odd = _mm256_srli_epi16(_mm256_add_epi16(odd, _mm256_set1_epi16(static_cast<short>(odd_bias))),
                          shift);
  return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
}

FUSIONLOADER_AVX2 void widen(const uint8_t* from, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += 32) {
    const __m256i here = load_for_interleaving(from + i);
    const Sums even = weighed(here, load_for_interleaving(from + i - 1));
    const Sums odd = weighed(here, load_for_interleaving(from + i + 1));
    store(out + 2 * i, side_by_side<2>(even.low, odd.low, 1, 2));
    if (i + 16 < count) store(out + 2 * i + 32, side_by_side<2>(even.high, odd.high, 1, 2));
  }
}

FUSIONLOADER_AVX2 void blend(const uint8_t* near, const uint8_t* far, bool far_is_below,
                             size_t count, uint8_t* out) {
  const __m256i bias = _mm256_set1_epi16(far_is_below ? 2 : 1);
  for (size_t i = 0; i < count; i += 32) {
    const Sums sums = weighed(load(near + i), load(far + i));
    store(out + i, _mm256_packus_epi16(_mm256_srli_epi16(_mm256_add_epi16(sums.low, bias), 2),
                                       _mm256_srli_epi16(_mm256_add_epi16(sums.high, bias), 2)));
  }
}

FUSIONLOADER_AVX2 inline __m256i times_3_plus(__m256i here, __m256i beside) {
  return _mm256_add_epi16(_mm256_add_epi16(here, here), _mm256_add_epi16(here, beside));
}

FUSIONLOADER_AVX2 void blend_and_widen(const uint8_t* near, const uint8_t* far, size_t count,
                                       uint8_t* out) {
  for (size_t i = 0; i < count; i += 32) {
    const Sums before = weighed_rows(near + i - 1, far + i - 1);
    const Sums here = weighed_rows(near + i, far + i);
    const Sums behind = weighed_rows(near + i + 1, far + i + 1);
    store(out + 2 * i, side_by_side<4>(times_3_plus(here.low, before.low),
                                       times_3_plus(here.low, behind.low), 8, 7));
    if (i + 16 < count)
      store(out + 2 * i + 32, side_by_side<4>(times_3_plus(here.high, before.high),
                                              times_3_plus(here.high, behind.high), 8, 7));
  }
}

// (chroma * factor + 2^15) >> 16 for chroma within +-128: the product of twice the chroma keeps one
// bit more, which rounds.
FUSIONLOADER_AVX2 inline __m256i rounded_product(__m256i chroma, int factor) {
  const __m256i doubled = _mm256_add_epi16(chroma, chroma);
  const __m256i product =
      _mm256_mulhi_epi16(doubled, _mm256_set1_epi16(static_cast<short>(factor)));
  return _mm256_srai_epi16(_mm256_add_epi16(product, _mm256_set1_epi16(1)), 1);
}

FUSIONLOADER_AVX2 inline __m256i rounded_green(__m256i blue_and_red) {
  const __m256i factors = _mm256_set1_epi32(static_cast<int>(
      (colour::green_cb & 0xFFFF) | static_cast<unsigned>(colour::green_cr) << 16));
  return _mm256_srai_epi32(
      _mm256_add_epi32(_mm256_madd_epi16(blue_and_red, factors), _mm256_set1_epi32(1 << 15)), 16);
}

struct Colours {
  __m256i red, green, blue;
};

// 16 pixels, 16 bits each.
FUSIONLOADER_AVX2 inline Colours converted(__m256i y, __m256i cb, __m256i cr) {
  const __m256i middle = _mm256_set1_epi16(128);
  cb = _mm256_sub_epi16(cb, middle);
  cr = _mm256_sub_epi16(cr, middle);
  const __m256i red = _mm256_add_epi16(rounded_product(cr, colour::red_cr), cr);
  const __m256i blue =
      _mm256_add_epi16(rounded_product(cb, colour::blue_cb), _mm256_add_epi16(cb, cb));
  const __m256i green =
      _mm256_sub_epi16(_mm256_packs_epi32(rounded_green(_mm256_unpacklo_epi16(cb, cr)),
                                          rounded_green(_mm256_unpackhi_epi16(cb, cr))),
                       cr);
  return {_mm256_add_epi16(y, red), _mm256_add_epi16(y, green), _mm256_add_epi16(y, blue)};
}

// Of 32 bytes, in the order that packing puts right: 0 to 7 and 16 to 23; 8 to 15 and 24 to 31.
FUSIONLOADER_AVX2 inline __m256i low_halves(__m256i bytes) {
  return _mm256_unpacklo_epi8(bytes, _mm256_setzero_si256());
}
FUSIONLOADER_AVX2 inline __m256i high_halves(__m256i bytes) {
  return _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256());
}

// 32 pixels from four bytes each; the last is not written where it means nothing.
FUSIONLOADER_AVX2 inline void store_pixels(uint8_t* out, size_t count, __m256i red, __m256i green,
                                           __m256i blue) {
  const __m256i full = _mm256_set1_epi8(-1);
  const __m256i low_rg = _mm256_unpacklo_epi8(red, green);
  const __m256i high_rg = _mm256_unpackhi_epi8(red, green);
  const __m256i low_bx = _mm256_unpacklo_epi8(blue, full);
  const __m256i high_bx = _mm256_unpackhi_epi8(blue, full);
  const __m256i a = _mm256_unpacklo_epi16(low_rg, low_bx);    // pixels 0 to 3, 16 to 19
  const __m256i b = _mm256_unpackhi_epi16(low_rg, low_bx);    // 4 to 7, 20 to 23
  const __m256i c = _mm256_unpacklo_epi16(high_rg, high_bx);  // 8 to 11, 24 to 27
  const __m256i d = _mm256_unpackhi_epi16(high_rg, high_bx);  // 12 to 15, 28 to 31
  store(out, _mm256_permute2x128_si256(a, b, 0x20));
  store(out + 32, _mm256_permute2x128_si256(c, d, 0x20));
  if (count <= 16) return;
  store(out + 64, _mm256_permute2x128_si256(a, b, 0x31));
  store(out + 96, _mm256_permute2x128_si256(c, d, 0x31));
}

FUSIONLOADER_AVX2 void to_rgbx(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count,
                               uint8_t* out) {
  for (size_t i = 0; i < count; i += 32) {
    const __m256i luma = load(y + i), blues = load(cb + i), reds = load(cr + i);
    const Colours low = converted(low_halves(luma), low_halves(blues), low_halves(reds));
    const Colours high = converted(high_halves(luma), high_halves(blues), high_halves(reds));
    store_pixels(out + 4 * i, count - i, _mm256_packus_epi16(low.red, high.red),
                 _mm256_packus_epi16(low.green, high.green),
                 _mm256_packus_epi16(low.blue, high.blue));
  }
}

FUSIONLOADER_AVX2 void grey_to_rgbx(const uint8_t* y, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; i += 32) {
    const __m256i luma = load(y + i);
    store_pixels(out + 4 * i, count - i, luma, luma, luma);
  }
}

}  // namespace

const SampleKernels avx2_sample_kernels{widen, blend, blend_and_widen, to_rgbx, grey_to_rgbx};

}  // namespace fusionloader
#endif
