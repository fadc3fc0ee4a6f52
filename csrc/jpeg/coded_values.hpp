#pragma once
// Values of coefficients as they are coded, for the readers of scans.
#include <array>
#include <cstdint>

#include "jpeg/bit_reader.hpp"
#include "jpeg/huffman.hpp"
#include "simd/inline.hpp"

#if defined(__x86_64__)
#define FUSIONLOADER_BMI2 __attribute__((target("bmi,bmi2,popcnt")))
#else
#define FUSIONLOADER_BMI2
#endif

namespace fusionloader {

// What is added to the bits of a value that begin with 0, by 63 less their number.
struct NegativeOffsets {
  std::array<int16_t, 64> offsets{};

  constexpr NegativeOffsets() {
    for (size_t size = 0; size < 16; ++size)
      offsets[63 - size] = static_cast<int16_t>(1 - (1 << size));
  }
};

inline constexpr NegativeOffsets negative_offsets;

// A value at the upper end of `ahead`, of 63 - `spare` bits. Without a branch, which could not be
// predicted.
FUSIONLOADER_INLINE int value_of(uint64_t ahead, unsigned spare) {
  const int value = static_cast<int>(ahead >> 1 >> spare);
  const int positive = static_cast<int>(static_cast<int64_t>(ahead) >> 63);
  return value + (negative_offsets.offsets[spare] & ~positive);
}

// What codes that the tables do not hold come to. By value, and the reader too: what a call can
// change does not stay in registers.
struct Rare {
  BitReader bits;
  unsigned symbol;
  bool known;  // the symbol is that of no zeros and no value otherwise
};

[[gnu::noinline]] inline Rare rare_symbol(BitReader bits, const Codes& codes) {
  bits.refill();
  unsigned length;
  const int symbol = codes.symbol(bits.peek(16), length);
  if (symbol < 0) return {bits, 0, false};
  bits.drop(length);
  bits.refill();
  return {bits, static_cast<unsigned>(symbol), true};
}

// Zero if `value` fits 15 bits, far more than any encoder uses.
FUSIONLOADER_INLINE uint32_t beyond_15_bits(int value) {
  return (static_cast<uint32_t>(value) + 16384) >> 15;
}

// Shifts by a variable distance in one instruction, and counts of bits.
inline bool have_quick_shifts() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("popcnt");
#else
  return false;
#endif
}

}  // namespace fusionloader
