#if defined(__x86_64__)
#include "ops/blend.hpp"
#include "simd/avx512.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2")))
#define FUSIONLOADER_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace fusionloader {
namespace {

FUSIONLOADER_AVX2 inline __m256i blend_eight(const uint8_t* from, const uint8_t* to,
                                             __m256 factor) {
  const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(to)));
  const __m256 change = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(_mm256_sub_epi32(b, a)));
  return _mm256_cvttps_epi32(_mm256_add_ps(_mm256_cvtepi32_ps(a), change));
}

FUSIONLOADER_AVX512 inline __m512i blend_sixteen(const uint8_t* from, const uint8_t* to,
                                                 __m512 factor) {
  const __m512i a = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(to)));
  const __m512 change = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(_mm512_sub_epi32(b, a)));
  return _mm512_cvttps_epi32(_mm512_add_ps(_mm512_cvtepi32_ps(a), change));
}

}  // namespace

// Packing saturates, which clips; it works within groups of 16 bytes, which the permutation undoes.

FUSIONLOADER_AVX2 void blend_levels_avx2(const uint8_t* from, const uint8_t* to, uint8_t* out,
                                         size_t count, float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (size_t i = 0; i < count; i += 32) {
    const __m256i first = _mm256_packs_epi32(blend_eight(from + i, to + i, factors),
                                             blend_eight(from + i + 8, to + i + 8, factors));
    const __m256i second = _mm256_packs_epi32(blend_eight(from + i + 16, to + i + 16, factors),
                                              blend_eight(from + i + 24, to + i + 24, factors));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), in_order));
  }
}

FUSIONLOADER_AVX512 void blend_levels_avx512(const uint8_t* from, const uint8_t* to, uint8_t* out,
                                             size_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (size_t i = 0; i < count; i += 64) {
    const __m512i first = _mm512_packs_epi32(blend_sixteen(from + i, to + i, factors),
                                             blend_sixteen(from + i + 16, to + i + 16, factors));
    const __m512i second = _mm512_packs_epi32(blend_sixteen(from + i + 32, to + i + 32, factors),
                                              blend_sixteen(from + i + 48, to + i + 48, factors));
    _mm512_storeu_si512(out + i,
                        _mm512_permutexvar_epi32(in_order, _mm512_packus_epi16(first, second)));
  }
}

}  // namespace fusionloader
#endif
