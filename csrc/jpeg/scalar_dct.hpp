#pragma once
// What the scalar references of inverse_dct.hpp and reduced_dct.hpp share.
#include <algorithm>
#include <cstdlib>

#include "jpeg/inverse_dct.hpp"

namespace fusionloader::dct {

inline int apply(Factors factors, int first, int second) {
  return factors.first * first + factors.second * second;
}

// Takes a block's coefficients out of it, multiplied, row by row. False where they are too large.
inline bool take(Block& block, const BlockTarget& target, int (&values)[64], int32_t& magnitude) {
  int64_t sums[4] = {};
  for (size_t row = 0; row < 8; ++row)
    for (size_t column = 0; column < 8; ++column) {
      const size_t place = coefficient_place(row, column);
      const int value = block.coefficients[place] * target.quantisers->values[place];
      values[8 * row + column] = value;
      sums[column % 4] += std::abs(value);
    }
  block.coefficients.fill(0);
  for (const int64_t sum : sums)
    magnitude = static_cast<int32_t>(std::max<int64_t>(magnitude, std::min<int64_t>(sum, 1 << 30)));
  return magnitude <= largest_magnitude;
}

// The first `side` of each eight values, in as many rows.
inline void store(const int (&values)[64], const BlockTarget& target, size_t side) {
  for (size_t row = 0; row < side; ++row)
    for (size_t column = 0; column < side; ++column)
      target.samples[row * target.stride + column] =
          static_cast<uint8_t>(std::clamp(values[8 * row + column] + 128, 0, 255));
}

}  // namespace fusionloader::dct
