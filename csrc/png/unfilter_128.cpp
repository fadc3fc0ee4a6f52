// SSE4.1 or NEON: four pixels at a time where a pixel is a sum, else one after the other.
#include "simd/vector128.hpp"
#if defined(FUSIONLOADER_128)
#include "png/unfilter.hpp"

namespace fusionloader {
namespace {

constexpr int opaque = static_cast<int>(0xFF000000);

// Four pixels of `bytes`, the fourth bytes of RGB being 0.
template <size_t bytes>
FUSIONLOADER_128 inline Vector128 four_pixels(const uint8_t* from) {
  alignas(16) static constexpr int8_t apart[] = {0, 1, 2, -1, 3, 4,  5,  -1,
                                                 6, 7, 8, -1, 9, 10, 11, -1};
  return bytes == 4 ? load(from) : shuffled(load(from), load(apart));
}

template <size_t bytes>
FUSIONLOADER_128 inline Vector128 finished(Vector128 pixels) {
  return bytes == 4 ? pixels : either(pixels, filled_32(opaque));
}

template <size_t bytes>
FUSIONLOADER_128 void none(const uint8_t* filtered, const uint8_t*, size_t width, uint8_t* out) {
  for (size_t x = 0; x < width; x += 4)
    store(out + 4 * x, finished<bytes>(four_pixels<bytes>(filtered + bytes * x)));
}

// Sums of four pixels, to which the last pixel of the four before is added.
template <size_t bytes>
FUSIONLOADER_128 void sub(const uint8_t* filtered, const uint8_t*, size_t width, uint8_t* out) {
  Vector128 left = filled_32(0);
  for (size_t x = 0; x < width; x += 4) {
    Vector128 pixels = four_pixels<bytes>(filtered + bytes * x);
    pixels = add_8(pixels, moved_up<4>(pixels));
    pixels = add_8(pixels, moved_up<8>(pixels));
    pixels = add_8(pixels, left);
    left = last_of_four_32(pixels);
    store(out + 4 * x, finished<bytes>(pixels));
  }
}

template <size_t bytes>
FUSIONLOADER_128 void up(const uint8_t* filtered, const uint8_t* above, size_t width,
                         uint8_t* out) {
  for (size_t x = 0; x < width; x += 4) {
    const Vector128 pixels = four_pixels<bytes>(filtered + bytes * x);
    store(out + 4 * x, finished<bytes>(add_8(pixels, load(above + 4 * x))));
  }
}

// One pixel's samples in 16 bits each, of which bytes are added: the upper ones stay 0.
template <size_t bytes, class Predict>
FUSIONLOADER_128 inline void one_by_one(const uint8_t* filtered, const uint8_t* above, size_t width,
                                        uint8_t* out, Predict predict) {
  const Vector128 behind = bytes == 4 ? filled_32(0) : filled_32(opaque);
  Vector128 left = filled_32(0), corner = filled_32(0);
  for (size_t x = 0; x < width; ++x) {
    const Vector128 over = low_words(load_32(above + 4 * x));
    left = add_8(low_words(load_32(filtered + bytes * x)), predict(left, over, corner));
    corner = over;
    store_32(out + 4 * x, either(pack_16_unsigned(left, left), behind));
  }
}

template <size_t bytes>
FUSIONLOADER_128 void average(const uint8_t* filtered, const uint8_t* above, size_t width,
                              uint8_t* out) {
  struct Average {
    FUSIONLOADER_128 Vector128 operator()(Vector128 left, Vector128 over, Vector128) const {
      return shift_right_16(add_16(left, over), 1);
    }
  };
  one_by_one<bytes>(filtered, above, width, out, Average{});
}

template <size_t bytes>
FUSIONLOADER_128 void paeth(const uint8_t* filtered, const uint8_t* above, size_t width,
                            uint8_t* out) {
  struct Paeth {
    FUSIONLOADER_128 Vector128 operator()(Vector128 left, Vector128 over, Vector128 corner) const {
      const Vector128 across = subtract_16(over, corner), down = subtract_16(left, corner);
      const Vector128 to_left = magnitude_16(across), to_above = magnitude_16(down);
      const Vector128 to_corner = magnitude_16(add_16(across, down));
      const Vector128 least = minimum_16(minimum_16(to_left, to_above), to_corner);
      return chosen(equal_16(least, to_left), left,
                    chosen(equal_16(least, to_above), over, corner));
    }
  };
  one_by_one<bytes>(filtered, above, width, out, Paeth{});
}

}  // namespace

const UnfilterKernels unfilter_128{{none<3>, sub<3>, up<3>, average<3>, paeth<3>},
                                   {none<4>, sub<4>, up<4>, average<4>, paeth<4>}};

}  // namespace fusionloader
#endif
