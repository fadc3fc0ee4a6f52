// SSE4.1 or NEON: four rows at a time in the horizontal pass, 16 bytes in the vertical one.
#include "simd/vector128.hpp"
#if defined(FUSIONLOADER_128)
#include "resize/kernels.hpp"
#include "simd/inline.hpp"

#define FUSIONLOADER_TARGET FUSIONLOADER_128

namespace fusionloader {
namespace {

using Vector = Vector128;

constexpr size_t rows_per_vector = 1, vectors_together = 4, parts = 4;

FUSIONLOADER_TARGET inline Vector load_rows(const uint8_t* const* rows, size_t at) {
  return load(rows[0] + at);
}
FUSIONLOADER_TARGET inline void store_rows(uint8_t* const* rows, size_t at, Vector bytes) {
  store(rows[0] + at, bytes);
}
FUSIONLOADER_TARGET inline void store_row(uint8_t* to, const Vector (&values)[parts]) {
  store(to, pack_16_unsigned(pack_32(values[0], values[1]), pack_32(values[2], values[3])));
}

#if defined(__x86_64__)
FUSIONLOADER_TARGET inline Vector add_products(Vector sum, Vector a, Vector b) {
  return add_32(sum, multiply_add(a, b));
}
FUSIONLOADER_TARGET inline Vector shuffled_rows(Vector a, const int8_t* order) {
  return shuffled(a, load(order));
}
FUSIONLOADER_TARGET inline void row_pairs(const uint8_t* first, const uint8_t* second,
                                          Vector (&pairs)[parts]) {
  const Vector a = load(first), b = load(second);
  const Vector low = interleave_low_8(a, b), high = interleave_high_8(a, b);
  pairs[0] = low_words(low);
  pairs[1] = high_words(low);
  pairs[2] = low_words(high);
  pairs[3] = high_words(high);
}

#include "resize/weighing_split.hpp"
constexpr auto prepare = prepare_pairs;
#else
#include "resize/weighing_whole.hpp"
constexpr auto prepare = prepare_whole;
#endif

#include "resize/kernels_body.hpp"

}  // namespace

FUSIONLOADER_TARGET void split_planes_128(const uint8_t* row, size_t width, uint8_t* out,
                                          size_t plane) {
  for (size_t x = 0; x < width; x += 16) {
    const Alternated pixels = load_alternated(row + 4 * x);
    store(out + x, pixels.a);
    store(out + plane + x, pixels.b);
    store(out + 2 * plane + x, pixels.c);
  }
}

const ResizeKernels kernels_128{prepare, horizontal, vertical, split_planes_128};

}  // namespace fusionloader
#endif
