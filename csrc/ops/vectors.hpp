#pragma once
// Vectors of as many 32-bit values as a SIMD level has, for loops that the compiler does not
// vectorise by itself. Comparisons give -1 or 0, and `condition ? a : b` chooses value by value.
#include <cstdint>
#include <cstring>

#include "ops/per_level.hpp"

// Vectors are passed to inlined functions only, so no calling convention is involved.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace fusionloader {

template <int lanes>
struct Vectors {
  typedef int32_t Ints __attribute__((vector_size(4 * lanes)));
  typedef float Floats __attribute__((vector_size(4 * lanes)));

  static FUSIONLOADER_INLINE Ints load(const int32_t* from) {
    Ints values;
    std::memcpy(&values, from, sizeof values);
    return values;
  }
  static FUSIONLOADER_INLINE Floats load(const float* from) {
    Floats values;
    std::memcpy(&values, from, sizeof values);
    return values;
  }
  static FUSIONLOADER_INLINE void store(int32_t* to, const Ints& values) {
    std::memcpy(to, &values, sizeof values);
  }
  static FUSIONLOADER_INLINE void store(float* to, const Floats& values) {
    std::memcpy(to, &values, sizeof values);
  }
};

// Overloads, as the compiler converts vectors of known types only. Floats are cut off.
#define FUSIONLOADER_CONVERSIONS(lanes)                                                      \
  FUSIONLOADER_INLINE Vectors<lanes>::Floats to_floats(const Vectors<lanes>::Ints& values) { \
    return __builtin_convertvector(values, Vectors<lanes>::Floats);                          \
  }                                                                                          \
  FUSIONLOADER_INLINE Vectors<lanes>::Ints to_ints(const Vectors<lanes>::Floats& values) {   \
    return __builtin_convertvector(values, Vectors<lanes>::Ints);                            \
  }
FUSIONLOADER_CONVERSIONS(4)
FUSIONLOADER_CONVERSIONS(8)
FUSIONLOADER_CONVERSIONS(16)
#undef FUSIONLOADER_CONVERSIONS

// a * b + c, rounded once; without such an instruction in float64, where a level times a fraction
// is exact.
template <int lanes, class Floats = typename Vectors<lanes>::Floats>
FUSIONLOADER_INLINE Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
  float from_a[lanes], from_b[lanes], from_c[lanes];
  std::memcpy(from_a, &a, sizeof a);
  std::memcpy(from_b, &b, sizeof b);
  std::memcpy(from_c, &c, sizeof c);
  for (int i = 0; i < lanes; ++i)
    from_c[i] = lanes > 4
                    ? __builtin_fmaf(from_a[i], from_b[i], from_c[i])
                    : static_cast<float>(static_cast<double>(from_a[i]) * from_b[i] + from_c[i]);
  Floats result;
  std::memcpy(&result, from_c, sizeof result);
  return result;
}

}  // namespace fusionloader
