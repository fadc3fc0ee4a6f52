// Pillow's way to hue, saturation and value and back, with the hue turned in between.
//
// Pillow computes in float32 and float64 by turns. The float32 and whole-number steps here give the
// same levels: for all 256 turns of every hue, saturation and value that a color can have.
#include <algorithm>

#include "arithmetic/hue.hpp"
#include "ops/color.hpp"
#include "ops/per_level.hpp"
#include "ops/vectors.hpp"

namespace fusionloader {
namespace {

// floor(offset + a * b), as if computed without rounding. The rounded result cut off is right or
// one too large, which the sign of what remains tells.
template <int lanes, class Ints, class Floats>
FUSIONLOADER_INLINE Ints floor_of(const Floats& offset, const Floats& a, const Floats& b) {
  const Ints floor = to_ints(multiply_add<lanes>(a, b, offset));
  const Floats rest = multiply_add<lanes>(a, b, offset - to_floats(floor));
  return floor + (rest < 0.0f);
}

template <class Ints>
FUSIONLOADER_INLINE Ints by_255(const Ints& value) {
  return (value + 1 + (value >> 8)) >> 8;
}

template <class Ints>
FUSIONLOADER_INLINE Ints larger(const Ints& a, const Ints& b) {
  return a > b ? a : b;
}

template <int lanes, class Ints = typename Vectors<lanes>::Ints>
FUSIONLOADER_INLINE Ints hue_of(const Ints& value, const Ints& chroma, const Ints& red,
                                const Ints& green, const Ints& blue) {
  using Floats = typename Vectors<lanes>::Floats;
  // A whole number of sixths, from the channel that is largest, plus the one and minus the other of
  // the two remaining channels' distances; the larger of those distances is 1.
  const Ints to_red = value - red, to_green = value - green, to_blue = value - blue, zero = {};
  const Ints red_largest = to_red == 0, green_largest = to_green == 0;
  const Ints plus = red_largest ? to_blue : green_largest ? to_red : to_green;
  const Ints minus = red_largest ? to_green : green_largest ? to_blue : to_red;
  const Ints from = red_largest ? zero : green_largest ? zero + 2 : zero + 4;
  const Ints up = plus == chroma;
  const Ints whole = from + (up ? zero + 1 : zero - 1), parts = up ? -minus : plus;
  const Ints some_chroma = larger(chroma, zero + 1);
  const Floats sixths = to_floats(whole) + to_floats(parts) / to_floats(some_chroma);
  const Ints turn = sixths < 0.0f ? zero + 1 : zero;
  const Floats turns = sixths / 6.0f + to_floats(turn);
  return floor_of<lanes, Ints, Floats>(Floats{}, turns, Floats{} + 255.0f);
}

// One channel of the result; places go round in sixths, at 0 and 5 the channel is full.
template <class Ints>
FUSIONLOADER_INLINE Ints at_place(const Ints& place, const Ints& full, const Ints& low,
                                  const Ints& changing) {
  const Ints turned = place >= 6 ? place - 6 : place;
  const Ints unless_full = ((turned == 2) | (turned == 3)) ? low : changing;
  return ((turned == 0) | (turned == 5)) ? full : unless_full;
}

template <int lanes>
FUSIONLOADER_INLINE void turn_vector(int32_t* reds, int32_t* greens, int32_t* blues, int turn) {
  using V = Vectors<lanes>;
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  const Ints red = V::load(reds), green = V::load(greens), blue = V::load(blues), zero = {};
  const Ints value = larger(red, larger(green, blue));
  const Ints chroma = value + larger(-red, larger(-green, -blue));
  const Floats full = to_floats(value);
  // Where there is no chroma any hue will do, as the saturation is 0.
  const Ints hue = (hue_of<lanes>(value, chroma, red, green, blue) + turn) & 255;
  const Floats purity = to_floats(chroma) / to_floats(larger(value, zero + 1));
  const Ints saturation = floor_of<lanes, Ints, Floats>(Floats{}, purity, Floats{} + 255.0f);

  const Ints sector = by_255(6 * hue), odd = sector & 1;
  const Floats within = to_floats(6 * hue - 255 * sector) / 255.0f;
  const Floats saturated = to_floats(saturation) / 255.0f;
  // One channel falls in odd sectors, one rises in even ones.
  const Floats part = to_floats(1 - odd) + to_floats(2 * odd - 1) * within;
  const Ints changing = floor_of<lanes, Ints, Floats>(full + 0.5f, -full, saturated * part);
  const Ints low = by_255(value * (255 - saturation) + 127);
  V::store(reds, at_place(sector, value, low, changing));
  V::store(greens, at_place(sector + 4, value, low, changing));
  V::store(blues, at_place(sector + 2, value, low, changing));
}

template <int most_lanes>
FUSIONLOADER_INLINE void hue_loop(uint8_t* reds, uint8_t* greens, uint8_t* blues, size_t count,
                                  int turn) {
  // Wider vectors are slower here: GCC 12 takes their comparisons apart.
  constexpr int lanes = most_lanes > 8 ? 8 : most_lanes;
  constexpr size_t block = 64;
  int32_t wide[3][block];
  for (size_t begin = 0; begin < count; begin += block) {
    for (size_t i = 0; i < block; ++i) wide[0][i] = reds[begin + i];
    for (size_t i = 0; i < block; ++i) wide[1][i] = greens[begin + i];
    for (size_t i = 0; i < block; ++i) wide[2][i] = blues[begin + i];
    for (size_t i = 0; i < block; i += lanes)
      turn_vector<lanes>(wide[0] + i, wide[1] + i, wide[2] + i, turn);
    for (size_t i = 0; i < block; ++i) reds[begin + i] = static_cast<uint8_t>(wide[0][i]);
    for (size_t i = 0; i < block; ++i) greens[begin + i] = static_cast<uint8_t>(wide[1][i]);
    for (size_t i = 0; i < block; ++i) blues[begin + i] = static_cast<uint8_t>(wide[2][i]);
  }
}

FUSIONLOADER_PER_LEVEL(turn_hue, hue_loop)

void turn_pixels(Planes& image, int turn) {
  uint8_t *reds = image.plane(0), *greens = image.plane(1), *blues = image.plane(2);
  for (size_t i = 0; i < image.size(); ++i) {
    const Pixel turned = with_hue_turned({reds[i], greens[i], blues[i]}, turn);
    reds[i] = turned.red;
    greens[i] = turned.green;
    blues[i] = turned.blue;
  }
}

}  // namespace

void adjust_hue(Planes& image, double factor, Rounding rounding, SimdLevel level) {
  if (rounding != Rounding::pillow) return adjust_tensor_hue(image, factor, rounding, level);
  if (image.channels() != 3) return;
  const int turn = whole_number(factor * 255.0) & 255;
  if (level < SimdLevel::avx2) return turn_pixels(image, turn);
  turn_hue(level, image.plane(0), image.plane(1), image.plane(2), image.padded_size(), turn);
}

}  // namespace fusionloader
