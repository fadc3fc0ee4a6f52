#pragma once
// The sum of levels or floats as torch.sum has it in float32, in one thread: rounded as there.
#include <array>
#include <cstddef>
#include <cstdint>

#include "simd/level.hpp"

namespace fusionloader {

// Vectors of 8 are added up 4 at a time, and these sums in 4 levels of sums: the arithmetic of
// aten/src/ATen/native/cpu/SumKernel.cpp, which is the same for all processors of x86-64.
class FloatSum {
 public:
  static constexpr size_t row = 32;  // elements that are added to one sum each

  explicit FloatSum(size_t count);
  // `count` is a multiple of 4096, except for the last elements. Elements are uint8_t or float.
  template <class Element>
  void add(const Element* elements, size_t count, SimdLevel level);
  float total() const;

 private:
  using Sums = std::array<float, row>;

  unsigned step_bits_;  // rows that are added before their sums go to the next level
  size_t rows_ = 0;
  std::array<Sums, 4> sums_{};
  Sums rest_{};
  size_t rest_count_ = 0;
};

}  // namespace fusionloader
