// The scalar reference, and the choice of kernels.
#include "jpeg/inverse_dct.hpp"

#include <algorithm>
#include <cstdlib>

namespace fusionloader {
namespace {

using namespace dct;

int apply(Factors factors, int first, int second) {
  return factors.first * first + factors.second * second;
}

// Eight values to eight, both `step` apart.
void transform(const int* x, int* out, size_t step, int shift) {
  const int x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
  const int x4 = x[4 * step], x5 = x[5 * step], x6 = x[6 * step], x7 = x[7 * step];
  const int half = 1 << (shift - 1);
  const int sum = apply(sum_04, x0, x4) + half, difference = apply(difference_04, x0, x4) + half;
  const int wide = apply(sum_26, x2, x6), narrow = apply(difference_26, x2, x6);
  const int even[4] = {sum + wide, difference + narrow, difference - narrow, sum - wide};
  for (size_t k = 0; k < 4; ++k) {
    const int odd = apply(odd_15[k], x1, x5) + apply(odd_37[k], x3, x7);
    out[k * step] = (even[k] + odd) >> shift;
    out[(7 - k) * step] = (even[k] - odd) >> shift;
  }
}

void transform_block(Block& block, const BlockTarget& target, int32_t& magnitude) {
  int values[64];
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
  if (magnitude > largest_magnitude) return;
  for (size_t column = 0; column < 8; ++column)
    transform(values + column, values + column, 8, column_shift);
  for (size_t row = 0; row < 8; ++row) {
    transform(values + 8 * row, values + 8 * row, 1, row_shift);
    for (size_t column = 0; column < 8; ++column)
      target.samples[row * target.stride + column] =
          static_cast<uint8_t>(std::clamp(values[8 * row + column] + 128, 0, 255));
  }
}

}  // namespace

void inverse_dct_scalar(Block* blocks, const BlockTarget* targets, int count, int32_t& magnitude) {
  for (int i = 0; i < count; ++i) transform_block(blocks[i], targets[i], magnitude);
}

InverseDct inverse_dct(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return inverse_dct_avx512;
  if (level == SimdLevel::avx2) return inverse_dct_avx2;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (level == SimdLevel::bits128) return inverse_dct_128;
#endif
  (void)level;
  return inverse_dct_scalar;
}

}  // namespace fusionloader
