// (level / 255 - mean) / deviation in float32, every step rounded as torch rounds it.
//
// A quotient a / b is taken as q + r * (a - q * b), with r the reciprocal of b, q = a * r and fused
// multiply-adds: correctly rounded but for rare operands, and cheaper than a division. The
// converter tries all 256 levels of every channel once, and looks them up if one comes out
// differently.
#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstring>

#include "convert/convert.hpp"

#define FUSIONLOADER_AVX2 __attribute__((target("avx2,fma")))
#define FUSIONLOADER_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace fusionloader {
namespace {

FUSIONLOADER_AVX2 inline __m256 divide(__m256 a, __m256 b, __m256 reciprocal) {
  const __m256 quotient = _mm256_mul_ps(a, reciprocal);
  return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, b, a), reciprocal, quotient);
}

FUSIONLOADER_AVX512 inline __m512 divide(__m512 a, __m512 b, __m512 reciprocal) {
  const __m512 quotient = _mm512_mul_ps(a, reciprocal);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, b, a), reciprocal, quotient);
}

void look_up_rest(const uint8_t* levels, size_t from, size_t count, const float* table,
                  float* out) {
  for (size_t i = from; i < count; ++i) out[i] = table[levels[i]];
}

}  // namespace

FUSIONLOADER_AVX2 void convert_float_avx2(const uint8_t* levels, size_t count,
                                          const FloatArithmetic& arithmetic, size_t channel,
                                          const float* table, float* out) {
  const __m256 mean = _mm256_set1_ps(arithmetic.mean[channel]);
  const __m256 deviation = _mm256_set1_ps(arithmetic.deviation[channel]);
  const __m256 deviation_reciprocal = _mm256_set1_ps(1.0f / arithmetic.deviation[channel]);
  const __m256 white = _mm256_set1_ps(255.0f), white_reciprocal = _mm256_set1_ps(1.0f / 255.0f);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m128i eight = _mm_setzero_si128();
    std::memcpy(&eight, levels + i, 8);
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
    const __m256 unit = arithmetic.by_reciprocal ? _mm256_mul_ps(value, white_reciprocal)
                                                 : divide(value, white, white_reciprocal);
    _mm256_storeu_ps(out + i, divide(_mm256_sub_ps(unit, mean), deviation, deviation_reciprocal));
  }
  look_up_rest(levels, i, count, table, out);
}

FUSIONLOADER_AVX512 void convert_float_avx512(const uint8_t* levels, size_t count,
                                              const FloatArithmetic& arithmetic, size_t channel,
                                              const float* table, float* out) {
  const __m512 mean = _mm512_set1_ps(arithmetic.mean[channel]);
  const __m512 deviation = _mm512_set1_ps(arithmetic.deviation[channel]);
  const __m512 deviation_reciprocal = _mm512_set1_ps(1.0f / arithmetic.deviation[channel]);
  const __m512 white = _mm512_set1_ps(255.0f), white_reciprocal = _mm512_set1_ps(1.0f / 255.0f);
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i sixteen;
    std::memcpy(&sixteen, levels + i, sizeof sixteen);
    const __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen));
    const __m512 unit = arithmetic.by_reciprocal ? _mm512_mul_ps(value, white_reciprocal)
                                                 : divide(value, white, white_reciprocal);
    _mm512_storeu_ps(out + i, divide(_mm512_sub_ps(unit, mean), deviation, deviation_reciprocal));
  }
  look_up_rest(levels, i, count, table, out);
}

}  // namespace fusionloader
#endif
