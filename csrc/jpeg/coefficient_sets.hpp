#pragma once
// Sets of coefficients, a bit each: what finds members of them without a loop, and with one.
#include <cstdint>

#include "jpeg/coded_values.hpp"
#include "simd/inline.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fusionloader {

struct LoopSets {
  // The member that `before` others are below; 0 if there is none.
  static FUSIONLOADER_INLINE uint64_t member(uint64_t set, unsigned before) {
    for (; before > 0 && set; --before) set &= set - 1;
    return set & (~set + 1);
  }
  // Of a set, the members whose bit is set among those of `chosen`: the lowest bit is the first
  // member's.
  static FUSIONLOADER_INLINE uint64_t subset(uint64_t set, uint64_t chosen) {
    uint64_t found = 0;
    for (; chosen && set; chosen >>= 1, set &= set - 1)
      if (chosen & 1) found |= set & (~set + 1);
    return found;
  }
};

#if defined(__x86_64__)
// In an instruction, which some processors do not have and a few take long for.
struct DepositSets {
  static inline FUSIONLOADER_BMI2 uint64_t member(uint64_t set, unsigned before) {
    return _pdep_u64(uint64_t{1} << before, set);
  }
  static inline FUSIONLOADER_BMI2 uint64_t subset(uint64_t set, uint64_t chosen) {
    return _pdep_u64(chosen, set);
  }
};

inline bool have_quick_deposits() {
  return have_quick_shifts() && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
}
#else
using DepositSets = LoopSets;

inline bool have_quick_deposits() { return false; }
#endif

// The first bit becomes the last.
FUSIONLOADER_INLINE uint64_t reversed(uint64_t bits) {
  constexpr uint64_t nibbles = 0x0F0F0F0F0F0F0F0F, pairs = 0x3333333333333333;
  constexpr uint64_t singles = 0x5555555555555555;
  bits = __builtin_bswap64(bits);
  bits = (bits >> 4 & nibbles) | (bits & nibbles) << 4;
  bits = (bits >> 2 & pairs) | (bits & pairs) << 2;
  return (bits >> 1 & singles) | (bits & singles) << 1;
}

FUSIONLOADER_INLINE unsigned size_of(uint64_t set) {
  return static_cast<unsigned>(__builtin_popcountll(set));
}

}  // namespace fusionloader
