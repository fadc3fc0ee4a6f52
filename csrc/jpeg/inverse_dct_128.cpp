// SSE4.1 or NEON: one block at a time, as in AVX2, of which these vectors are halves.
#include "simd/vector128.hpp"
#if defined(FUSIONLOADER_128)
#include <algorithm>
#include <cstring>

#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"

#define FUSIONLOADER_TARGET FUSIONLOADER_128

namespace fusionloader {
namespace {

struct Vector {
  Vector128 low, high;
};

FUSIONLOADER_TARGET inline Vector128 low_half(Vector a) { return a.low; }
FUSIONLOADER_TARGET inline Vector128 high_half(Vector a) { return a.high; }
FUSIONLOADER_TARGET inline Vector load_quarter(const int16_t* from) {
  return {load(from), load(from + 8)};
}
FUSIONLOADER_TARGET inline void store_quarter(int16_t* to, Vector a) {
  store(to, a.low);
  store(to + 8, a.high);
}
FUSIONLOADER_TARGET inline Vector fill(int value) { return {filled_32(value), filled_32(value)}; }
FUSIONLOADER_TARGET inline Vector fill_pairs(int first, int second) {
  return fill(static_cast<int>((first & 0xFFFF) | static_cast<unsigned>(second) << 16));
}
FUSIONLOADER_TARGET inline Vector add(Vector a, Vector b) {
  return {add_32(a.low, b.low), add_32(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector subtract(Vector a, Vector b) {
  return {subtract_32(a.low, b.low), subtract_32(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector multiply(Vector a, Vector b) {
  return {multiply_16(a.low, b.low), multiply_16(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector multiply_add(Vector a, Vector b) {
  return {fusionloader::multiply_add(a.low, b.low), fusionloader::multiply_add(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector magnitude_of(Vector a) {
  return {magnitude_16(a.low), magnitude_16(a.high)};
}
FUSIONLOADER_TARGET inline Vector shift_right(Vector a, int bits) {
  return {shift_right_signed_32(a.low, bits), shift_right_signed_32(a.high, bits)};
}
FUSIONLOADER_TARGET inline Vector pack(Vector a, Vector b) {
  return {pack_32(a.low, b.low), pack_32(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector128 row_in_pairs(Vector row) {
  alignas(16) static constexpr uint8_t order[] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                  4, 5, 12, 13, 6, 7, 14, 15};
  return shuffled(pack_32(row.low, row.high), load(order));
}
FUSIONLOADER_TARGET inline Vector pair_columns(Vector upper, Vector lower) {
  return {row_in_pairs(upper), row_in_pairs(lower)};
}
FUSIONLOADER_TARGET inline Vector pack_bytes(Vector a, Vector b) {
  const Vector128 middle = filled_8(-128);
  return {subtract_8(pack_16(a.low, b.low), middle), subtract_8(pack_16(a.high, b.high), middle)};
}
FUSIONLOADER_TARGET inline Vector turn_bytes(Vector a) {
  alignas(16) static constexpr uint8_t order[] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                  2, 6, 10, 14, 3, 7, 11, 15};
  return {shuffled(a.low, load(order)), shuffled(a.high, load(order))};
}
FUSIONLOADER_TARGET inline Vector interleave_low_32(Vector a, Vector b) {
  return {fusionloader::interleave_low_32(a.low, b.low),
          fusionloader::interleave_low_32(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector interleave_high_32(Vector a, Vector b) {
  return {fusionloader::interleave_high_32(a.low, b.low),
          fusionloader::interleave_high_32(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector interleave_low_64(Vector a, Vector b) {
  return {fusionloader::interleave_low_64(a.low, b.low),
          fusionloader::interleave_low_64(a.high, b.high)};
}
FUSIONLOADER_TARGET inline Vector interleave_high_64(Vector a, Vector b) {
  return {fusionloader::interleave_high_64(a.low, b.low),
          fusionloader::interleave_high_64(a.high, b.high)};
}

#include "jpeg/inverse_dct_body.hpp"
// One block at a time.
#include "jpeg/inverse_dct_blocks.hpp"

}  // namespace

const DctKernels dct_128{transform_each, reduce_each<4>, reduce_each<2>, reduce_each<1>};

}  // namespace fusionloader
#endif
