// SSE4.1 or NEON: 16 pixels from planes, four from pixels.
#include "simd/vector128.hpp"
#if defined(FUSIONLOADER_128)
#include "ops/interleave.hpp"

namespace fusionloader {
namespace {

FUSIONLOADER_128 void join_rgb(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                               size_t width, uint8_t* out) {
  size_t x = 0;
  for (; x + 16 <= width; x += 16)
    store_alternated(out + 3 * x, load(red + x), load(green + x), load(blue + x));
  scalar_interleave.join_rgb(red + x, green + x, blue + x, width - x, out + 3 * x);
}

FUSIONLOADER_128 void join_rgbx(const uint8_t* red, const uint8_t* green, const uint8_t* blue,
                                size_t width, uint8_t* out) {
  size_t x = 0;
  for (; x + 16 <= width; x += 16)
    store_alternated(out + 4 * x, load(red + x), load(green + x), load(blue + x), filled_32(0));
  scalar_interleave.join_rgbx(red + x, green + x, blue + x, width - x, out + 4 * x);
}

// Four pixels at a time: stores of 16 bytes, of which the next overwrites four.
FUSIONLOADER_128 inline size_t pack(const uint8_t* row, size_t width, uint8_t* out,
                                    const int8_t* order) {
  size_t x = 0;
  for (; x + 6 <= width; x += 4) store(out + 3 * x, shuffled(load(row + 4 * x), load(order)));
  return x;
}

FUSIONLOADER_128 void pack_rgb(const uint8_t* row, size_t width, uint8_t* out) {
  alignas(16) static constexpr int8_t order[] = {0,  1,  2,  4,  5,  6,  8,  9,
                                                 10, 12, 13, 14, -1, -1, -1, -1};
  const size_t x = pack(row, width, out, order);
  scalar_interleave.pack_rgb(row + 4 * x, width - x, out + 3 * x);
}

FUSIONLOADER_128 void pack_bgr(const uint8_t* row, size_t width, uint8_t* out) {
  alignas(16) static constexpr int8_t order[] = {2, 1,  0,  6,  5,  4,  10, 9,
                                                 8, 14, 13, 12, -1, -1, -1, -1};
  const size_t x = pack(row, width, out, order);
  scalar_interleave.pack_bgr(row + 4 * x, width - x, out + 3 * x);
}

// Loads of 16 bytes, of which 12 are used.
FUSIONLOADER_128 void spread_rgb(const uint8_t* row, size_t width, uint8_t* out) {
  alignas(16) static constexpr int8_t apart[] = {0, 1, 2, -1, 3, 4,  5,  -1,
                                                 6, 7, 8, -1, 9, 10, 11, -1};
  size_t x = 0;
  for (; x + 6 <= width; x += 4) store(out + 4 * x, shuffled(load(row + 3 * x), load(apart)));
  scalar_interleave.spread_rgb(row + 3 * x, width - x, out + 4 * x);
}

FUSIONLOADER_128 void mirror(const uint8_t* row, size_t width, uint8_t* out) {
  alignas(16) static constexpr int8_t backwards[] = {12, 13, 14, 15, 8, 9, 10, 11,
                                                     4,  5,  6,  7,  0, 1, 2,  3};
  size_t x = 0;
  for (; x + 4 <= width; x += 4)
    store(out + 4 * x, shuffled(load(row + 4 * (width - 4 - x)), load(backwards)));
  scalar_interleave.mirror(row, width - x, out + 4 * x);
}

}  // namespace

const InterleaveKernels interleave_128{join_rgb, join_rgbx, pack_rgb, pack_bgr, spread_rgb, mirror};

}  // namespace fusionloader
#endif
