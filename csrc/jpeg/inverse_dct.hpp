#pragma once
// Blocks of coefficients to blocks of samples.
//
// Arithmetic of every kernel: the accurate integer transform of the IJG's library (JDCT_ISLOW),
// after Loeffler, Ligtenberg and Moschytz: constants with 13 fractional bits; columns first, kept
// with 2 more bits than the coefficients, rounded; then rows, rounded to whole numbers; plus 128,
// clipped to 0..255.
#include <cstddef>
#include <cstdint>

#include "jpeg/block.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Where a block's samples go, and what its coefficients are multiplied with.
struct BlockTarget {
  const Quantisers* quantisers;
  uint8_t* samples;
  size_t stride;
};

// The sum of a block's magnitudes over columns c and c + 4 up to which no kernel, nor libjpeg's,
// leaves 16 bits between columns and rows. Encoders stay far below: 4096 and their rounding.
constexpr int32_t largest_magnitude = 5900;
constexpr int32_t too_large = largest_magnitude + 1;

// Transforms `count` blocks and leaves zeros in them. `magnitude` becomes at least the largest sum
// met: above largest_magnitude the samples mean nothing.
using InverseDct = void (*)(Block* blocks, const BlockTarget* targets, int count,
                            int32_t& magnitude);

void inverse_dct_scalar(Block* blocks, const BlockTarget* targets, int count, int32_t& magnitude);
#if defined(__x86_64__)
void inverse_dct_avx512(Block* blocks, const BlockTarget* targets, int count, int32_t& magnitude);
#endif

// The transform of eight values x as sums over pairs (k, k + 4), which is how coefficients lie in
// memory. Outputs k and 7 - k are the sum and the difference of an even part k, of x0, x4, x2, x6,
// and an odd part k, of x1, x5, x3, x7. The factors are sums of the published constants, each of
// which was rounded by itself.
namespace dct {

constexpr int fraction_bits = 13, extra_bits = 2;
constexpr int column_shift = fraction_bits - extra_bits;
constexpr int row_shift = fraction_bits + extra_bits + 3;

// round(2^13 * c)
constexpr int c0298 = 2446, c0390 = 3196, c0541 = 4433, c0765 = 6270, c0899 = 7373, c1175 = 9633;
constexpr int c1501 = 12299, c1847 = 15137, c1961 = 16069, c2053 = 16819, c2562 = 20995;
constexpr int c3072 = 25172;

struct Factors {
  int first, second;  // of x[k] and of x[k + 4]
};

constexpr Factors sum_04{1 << fraction_bits, 1 << fraction_bits};
constexpr Factors difference_04{1 << fraction_bits, -(1 << fraction_bits)};
constexpr Factors sum_26{c0541 + c0765, c0541};
constexpr Factors difference_26{c0541, c0541 - c1847};
constexpr Factors odd_15[4] = {{c1175 + c1501 - c0899 - c0390, c1175 - c0390},
                               {c1175, c1175 - c2562},
                               {c1175 - c0390, c1175 + c2053 - c2562 - c0390},
                               {c1175 - c0899, c1175}};
constexpr Factors odd_37[4] = {{c1175, c1175 - c0899},
                               {c1175 + c3072 - c2562 - c1961, c1175 - c1961},
                               {c1175 - c2562, c1175},
                               {c1175 - c1961, c1175 + c0298 - c0899 - c1961}};

}  // namespace dct

}  // namespace fusionloader
