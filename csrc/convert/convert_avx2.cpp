// AVX2: eight floats at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "convert/convert.hpp"
#include "simd/inline.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx2,fma")))

namespace fusionloader {
namespace {

using Floats = __m256;

FUSIONLOADER_TARGET inline Floats filled(float value) { return _mm256_set1_ps(value); }
FUSIONLOADER_TARGET inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
FUSIONLOADER_TARGET inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
FUSIONLOADER_TARGET inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
FUSIONLOADER_TARGET inline Floats subtract_product(Floats a, Floats b, Floats c) {
  return _mm256_fnmadd_ps(a, b, c);
}
FUSIONLOADER_TARGET inline Floats floats_of(const uint8_t* levels) {
  __m128i eight = _mm_setzero_si128();
  std::memcpy(&eight, levels, 8);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
}
FUSIONLOADER_TARGET inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }

#include "convert/convert_body.hpp"

}  // namespace

const FloatKernel convert_float_avx2 = convert;

}  // namespace fusionloader
#endif
