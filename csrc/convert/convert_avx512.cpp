// AVX-512: 16 floats at a time.
#if defined(__x86_64__)
#include <cstring>

#include "convert/convert.hpp"
#include "simd/avx512.hpp"
#include "simd/inline.hpp"

#define FUSIONLOADER_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace fusionloader {
namespace {

using Floats = __m512;

FUSIONLOADER_TARGET inline Floats filled(float value) { return _mm512_set1_ps(value); }
FUSIONLOADER_TARGET inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
FUSIONLOADER_TARGET inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
FUSIONLOADER_TARGET inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
FUSIONLOADER_TARGET inline Floats subtract_product(Floats a, Floats b, Floats c) {
  return _mm512_fnmadd_ps(a, b, c);
}
FUSIONLOADER_TARGET inline Floats floats_of(const uint8_t* levels) {
  __m128i sixteen;
  std::memcpy(&sixteen, levels, sizeof sixteen);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen));
}
FUSIONLOADER_TARGET inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }

#include "convert/convert_body.hpp"

}  // namespace

const FloatKernel convert_float_avx512 = convert;

}  // namespace fusionloader
#endif
