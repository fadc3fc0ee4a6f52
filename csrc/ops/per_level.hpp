#pragma once
// Compiles one plain loop once for each SIMD level and picks one at run time.
//
// The loops of these ops are simple enough for the compiler to vectorise: written once, they cannot
// differ between levels. Each is an always-inline function, so it takes over the instruction set of
// the function that it is inlined into.
#include <utility>

#include "simd/inline.hpp"
#include "simd/level.hpp"

#if defined(__x86_64__)
#define FUSIONLOADER_AVX2 __attribute__((target("avx2,fma")))
#define FUSIONLOADER_AVX512 \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,prefer-vector-width=512")))

// Defines name(level, arguments...) from loop<lanes>(arguments...), where lanes is the number of
// 32-bit values in a vector.
#define FUSIONLOADER_PER_LEVEL(name, loop)                              \
  template <class... Arguments>                                         \
  auto name##_scalar(Arguments... arguments) {                          \
    return loop<4>(arguments...);                                       \
  }                                                                     \
  template <class... Arguments>                                         \
  FUSIONLOADER_AVX2 auto name##_avx2(Arguments... arguments) {          \
    return loop<8>(arguments...);                                       \
  }                                                                     \
  template <class... Arguments>                                         \
  FUSIONLOADER_AVX512 auto name##_avx512(Arguments... arguments) {      \
    return loop<16>(arguments...);                                      \
  }                                                                     \
  template <class... Arguments>                                         \
  auto name(SimdLevel level, Arguments... arguments) {                  \
    if (level == SimdLevel::avx512) return name##_avx512(arguments...); \
    if (level == SimdLevel::avx2) return name##_avx2(arguments...);     \
    return name##_scalar(arguments...);                                 \
  }
#else
#define FUSIONLOADER_PER_LEVEL(name, loop)       \
  template <class... Arguments>                  \
  auto name(SimdLevel, Arguments... arguments) { \
    return loop<4>(arguments...);                \
  }
#endif
