#pragma once
// Vectors of 128 bits, for kernels that are written once for x86 (SSE4.1) and 64-bit Arm (NEON).
//
// Both headers define, with FUSIONLOADER_128 as their functions' attribute, the type Vector128 and
// what is done to it, N being the bits of an element:
//   load, store, store_two                     16 bytes; the two halves to two places
//   filled_N                                   the same value everywhere
//   load_32, store_32                          the first four bytes; the others are 0
//   add_N, subtract_N, multiply_16, magnitude_16, minimum_16, maximum_32, largest_32
//   equal_16, chosen, either                   all ones where equal; a where ones, else b; or
//   moved_up, last_of_four_32                  bytes to higher places; the last 32 bits everywhere
//   shift_right_16, shift_right_signed_N       zeros or the sign come in
//   pack_32, pack_16, pack_16_unsigned         clipped to half the bits; b's behind a's
//   interleave_low_N, interleave_high_N        a0 b0 a1 b1 ... of the first or second halves
//   shuffled                                   byte i is the one that order[i] names
//   low_words, high_words                      bytes to 16 bits
//   multiply_add                               sums of the products of neighbours, to 32 bits
//   doubled_product_high                       2 * a * factor >> 16
//   rounded_sum_of_products                    a * of_a + b * of_b, less 16 bits, rounded
//   three_and_one_low, three_and_one_high      3 * a + b of bytes, 16 bits each
//   alternated                                 the low bytes of 16 bits each: a0 b0 a1 b1 ...
//   store_alternated                           bytes of four vectors, 64 together: a0 b0 c0 d0 ...,
//                                              or of three, 48 together: a0 b0 c0 ...
//   load_alternated                            64 bytes a0 b0 c0 d0 ... as a, b and c
// Each has a few more at its end, for kernels that multiply as it does best.
#if defined(__x86_64__)
#include "simd/sse4.hpp"
#elif defined(__aarch64__)
#include "simd/neon.hpp"
#endif
