// Pillow's way to hue, saturation and value and back, with the hue turned in between.
//
// Pillow computes in float32 and float64 by turns; what comes out is the same as from the float32
// and whole-number steps here, for every colour and every hue (see tests/ops/test_colour.py).
#include <algorithm>
#include <cmath>

#include "ops/colour.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

// floor(offset + a * b), as if computed without rounding. The whole number nearest below the
// rounded result is right or one too large, which the sign of what remains tells.
template <int lanes>
FUSIONLOADER_INLINE int floor_of(float offset, float a, float b) {
  if (lanes > 4) {
    const int floor = static_cast<int>(__builtin_fmaf(a, b, offset));
    const float rest = __builtin_fmaf(a, b, offset - static_cast<float>(floor));
    return floor - (rest < 0.0f ? 1 : 0);
  }
  return static_cast<int>(static_cast<double>(a) * static_cast<double>(b) + offset);
}

FUSIONLOADER_INLINE int by_255(int value) { return (value + 1 + (value >> 8)) >> 8; }

template <int lanes>
FUSIONLOADER_INLINE void hue_loop(uint8_t* __restrict reds, uint8_t* __restrict greens,
                                  uint8_t* __restrict blues, size_t count, int turn) {
  for (size_t i = 0; i < count; ++i) {
    const int red = reds[i], green = greens[i], blue = blues[i];
    const int value = std::max(red, std::max(green, blue));
    const int least = std::min(red, std::min(green, blue));
    const int chroma = value - least, some_chroma = std::max(chroma, 1);

    // The hue is a whole number of sixths, from the channel that is largest, plus the one and minus
    // the other of the two remaining channels' distances; the larger of those distances is 1.
    const bool red_largest = red == value, green_largest = green == value;
    const int plus = value - (red_largest ? blue : green_largest ? red : green);
    const int minus = value - (red_largest ? green : green_largest ? blue : red);
    const int base = red_largest ? 0 : green_largest ? 2 : 4;
    const bool up = plus == chroma;
    const auto distance = static_cast<float>(up ? -minus : plus) / static_cast<float>(some_chroma);
    const float sixths = static_cast<float>(base + (up ? 1 : -1)) + distance;
    const float turns = sixths / 6.0f + (sixths < 0.0f ? 1.0f : 0.0f);
    const int found = chroma == 0 ? 0 : floor_of<lanes>(0.0f, turns, 255.0f);
    const float purity = static_cast<float>(chroma) / static_cast<float>(std::max(value, 1));
    const int saturation = floor_of<lanes>(0.0f, purity, 255.0f);

    const int hue = (found + turn) & 255;
    const int sector = by_255(6 * hue);
    const float within = static_cast<float>(6 * hue - 255 * sector) / 255.0f;
    const float saturated = static_cast<float>(saturation) / 255.0f;
    const auto full = static_cast<float>(value);
    const int low = by_255(value * (255 - saturation) + 127);
    const int falling = floor_of<lanes>(full + 0.5f, -full, saturated * within);
    const int rising = floor_of<lanes>(full + 0.5f, -full, saturated * (1.0f - within));

    const int even = sector & 1 ? falling : rising;  // the channel that changes in this sector
    reds[i] = static_cast<uint8_t>(sector == 0 || sector >= 5   ? value
                                   : sector == 2 || sector == 3 ? low
                                                                : even);
    greens[i] = static_cast<uint8_t>(sector == 1 || sector == 2   ? value
                                     : sector == 4 || sector == 5 ? low
                                                                  : even);
    blues[i] = static_cast<uint8_t>(sector == 3 || sector == 4                  ? value
                                    : sector == 0 || sector == 1 || sector == 6 ? low
                                                                                : even);
  }
}

FUSIONLOADER_PER_LEVEL(turn_hue, hue_loop)

}  // namespace

void adjust_hue(Planes& image, double factor, SimdLevel level) {
  if (image.channels() != 3) return;
  const int turn = static_cast<int>(factor * 255.0) & 255;
  turn_hue(level, image.plane(0), image.plane(1), image.plane(2), (image.size() + 63) / 64 * 64,
           turn);
}

}  // namespace fusionloader
