// The scalar reference, and the choice of kernels.
#include "jpeg/reduced_dct.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/scalar_dct.hpp"

namespace fusionloader {
namespace {

using namespace dct;

// Eight values to the first `side` of them, all `step` apart.
template <int side>
void transform(int* x, size_t step, int shift) {
  const int x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
  const int x5 = x[5 * step], x6 = x[6 * step], x7 = x[7 * step];
  shift += more_bits(side);
  const int sum = x[0] * (1 << (fraction_bits + more_bits(side))) + (1 << (shift - 1));
  if (side == 2) {
    const int odd = apply(odd_15_of_2, x1, x5) + apply(odd_37_of_2, x3, x7);
    x[0] = (sum + odd) >> shift;
    x[step] = (sum - odd) >> shift;
    return;
  }
  const int wide = apply(even_26_of_4, x2, x6);
  const int even[2] = {sum + wide, sum - wide};
  for (size_t k = 0; k < 2; ++k) {
    const int odd = apply(odd_15_of_4[k], x1, x5) + apply(odd_37_of_4[k], x3, x7);
    x[k * step] = (even[k] + odd) >> shift;
    x[(3 - k) * step] = (even[k] - odd) >> shift;
  }
}

template <int side>
void transform_block(Block& block, const BlockTarget& target, int32_t& magnitude) {
  int values[64];
  if (!take(block, target, values, magnitude)) return;
  if (side == 1) {
    values[0] = (values[0] + 4) >> 3;
    if (wraps_around(values[0])) magnitude = std::max(magnitude, too_large);
  } else {
    for (size_t column = 0; column < 8; ++column) transform<side>(values + column, 8, column_shift);
    for (size_t row = 0; row < side; ++row) transform<side>(values + 8 * row, 1, row_shift);
  }
  store(values, target, side);
}

template <int side>
void scalar(Block* blocks, const BlockTarget* targets, int count, int32_t& magnitude) {
  for (int i = 0; i < count; ++i) transform_block<side>(blocks[i], targets[i], magnitude);
}

const DctKernels& kernels_of(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::avx2) return avx2_dct;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (level == SimdLevel::bits128) return dct_128;
#endif
  (void)level;
  return scalar_dct;
}

}  // namespace

const DctKernels scalar_dct{inverse_dct_scalar, scalar<4>, scalar<2>, scalar<1>};

void fill_with_mean(Block& block, const BlockTarget& target, int side, int32_t& magnitude) {
  const int product = block.coefficients[0] * target.quantisers->values[0];
  block.coefficients[0] = 0;
  magnitude = std::max(magnitude, std::abs(product));
  const int mean = (product + 4) >> 3;
  if (side == 1 && wraps_around(mean)) magnitude = std::max(magnitude, too_large);
  const int sample = std::clamp(mean + 128, 0, 255);
  for (size_t row = 0; row < static_cast<size_t>(side); ++row)
    std::memset(target.samples + row * target.stride, sample, static_cast<size_t>(side));
}

InverseDct reduced_dct(SimdLevel level, int side) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512 && side == 8) return inverse_dct_avx512;
#endif
  const DctKernels& kernels = kernels_of(level);
  return side == 8   ? kernels.to_8
         : side == 4 ? kernels.to_4
         : side == 2 ? kernels.to_2
                     : kernels.to_1;
}

}  // namespace fusionloader
