#pragma once
// Blocks of coefficients to fewer samples than they were made from: 4 x 4, 2 x 2 or 1.
//
// Arithmetic of every kernel: the reduced transforms of the IJG's library, which leave out what the
// missing samples would need from the transform of eight: constants with 13 fractional bits;
// columns first, kept with 2 more bits than the coefficients, rounded; then rows, rounded to whole
// numbers; plus 128, clipped to 0..255. One sample is the block's mean. What inverse_dct.hpp says
// of magnitudes holds here too.
#include "jpeg/inverse_dct.hpp"

namespace fusionloader {

// By the samples at a side of what becomes of a block.
struct DctKernels {
  InverseDct to_8, to_4, to_2, to_1;
};

// The transform to `side` x `side` samples: 8, 4, 2 or 1.
InverseDct reduced_dct(SimdLevel level, int side);

// Whether a block's mean is one that libjpeg, which has no vectors for a single sample, would take
// for one at the other end of the range: its table of limits has room for 1024.
inline bool wraps_around(int mean) { return mean < -512 || mean > 511; }

// What each of these transforms gives for a block without AC coefficients: its mean, everywhere.
void fill_with_mean(Block& block, const BlockTarget& target, int side, int32_t& magnitude);

extern const DctKernels scalar_dct;
#if defined(__x86_64__) || defined(__aarch64__)
extern const DctKernels dct_128;
#endif
#if defined(__x86_64__)
extern const DctKernels avx2_dct;
#endif

// Factors of sums over pairs (k, k + 4), as in inverse_dct.hpp. Of four outputs k and 3 - k are the
// sum and the difference of an even part k, of x0, x2, x6, and an odd one, of x1, x5, x3, x7. Of
// two the even part is x0 alone.
namespace dct {

// round(2^13 * c)
constexpr int c0211 = 1730, c0510 = 4176, c0601 = 4926, c0721 = 5906, c0850 = 6967, c1062 = 8697;
constexpr int c1273 = 10426, c1452 = 11893, c2173 = 17799, c2563 = 20995, c3625 = 29692;

constexpr Factors even_26_of_4{c1847, -c0765};
constexpr Factors odd_15_of_4[2] = {{c2563, -c0601}, {c1062, c1452}};
constexpr Factors odd_37_of_4[2] = {{c0899, -c0510}, {-c2173, -c0211}};
constexpr Factors odd_15_of_2{c3625, c0850}, odd_37_of_2{-c1273, -c0721};

// Fractional bits that fewer outputs than inputs add.
constexpr int more_bits(int side) { return side == 4 ? 1 : 2; }

}  // namespace dct

}  // namespace fusionloader
