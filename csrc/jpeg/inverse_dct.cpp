// The scalar reference.
#include "jpeg/inverse_dct.hpp"

#include "jpeg/scalar_dct.hpp"

namespace fusionloader {
namespace {

using namespace dct;

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
  if (!take(block, target, values, magnitude)) return;
  for (size_t column = 0; column < 8; ++column)
    transform(values + column, values + column, 8, column_shift);
  for (size_t row = 0; row < 8; ++row) transform(values + 8 * row, values + 8 * row, 1, row_shift);
  store(values, target, 8);
}

}  // namespace

void inverse_dct_scalar(Block* blocks, const BlockTarget* targets, int count, int32_t& magnitude) {
  for (int i = 0; i < count; ++i) transform_block(blocks[i], targets[i], magnitude);
}

}  // namespace fusionloader
