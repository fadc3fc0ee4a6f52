#pragma once
// One pixel's way to hue, saturation and value and back, with the hue turned in between: the scalar
// reference of what ops/hue.cpp does to vectors. See there for why these steps are Pillow's.
#include <cmath>
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

// floor(offset + a * b), as if computed without rounding. The rounded result cut off is right or
// one too large, which the sign of what remains tells.
FUSIONLOADER_BOTH int exact_floor(float offset, float a, float b) {
  const int floor = static_cast<int>(fmaf(a, b, offset));
  const float rest = fmaf(a, b, offset - static_cast<float>(floor));
  return rest < 0.0f ? floor - 1 : floor;
}

FUSIONLOADER_BOTH int by_255(int value) { return (value + 1 + (value >> 8)) >> 8; }

FUSIONLOADER_BOTH int hue_of(int value, int chroma, int red, int green, int blue) {
  // A whole number of sixths, from the channel that is largest, plus the one and minus the other of
  // the two remaining channels' distances; the larger of those distances is 1.
  const int to_red = value - red, to_green = value - green, to_blue = value - blue;
  const bool red_largest = to_red == 0, green_largest = to_green == 0;
  const int plus = red_largest ? to_blue : green_largest ? to_red : to_green;
  const int minus = red_largest ? to_green : green_largest ? to_blue : to_red;
  const int from = red_largest ? 0 : green_largest ? 2 : 4;
  const bool up = plus == chroma;
  const int whole = up ? from + 1 : from - 1, parts = up ? -minus : plus;
  const int some_chroma = chroma > 1 ? chroma : 1;
  const float sixths =
      static_cast<float>(whole) + static_cast<float>(parts) / static_cast<float>(some_chroma);
  const float turns = sixths / 6.0f + (sixths < 0.0f ? 1.0f : 0.0f);
  return exact_floor(0.0f, turns, 255.0f);
}

// One channel of the result; places go round in sixths, at 0 and 5 the channel is full.
FUSIONLOADER_BOTH uint8_t at_place(int place, int full, int low, int changing) {
  const int turned = place >= 6 ? place - 6 : place;
  if (turned == 0 || turned == 5) return static_cast<uint8_t>(full);
  return static_cast<uint8_t>(turned == 2 || turned == 3 ? low : changing);
}

struct Pixel {
  uint8_t red, green, blue;
};

// By `turn` / 256 of the circle; `turn` is within 0 .. 255.
FUSIONLOADER_BOTH Pixel with_hue_turned(const Pixel& pixel, int turn) {
  const int red = pixel.red, green = pixel.green, blue = pixel.blue;
  const int more = green > blue ? green : blue, less = green < blue ? green : blue;
  const int value = red > more ? red : more, chroma = value - (red < less ? red : less);
  // Where there is no chroma any hue will do, as the saturation is 0.
  const int hue = (hue_of(value, chroma, red, green, blue) + turn) & 255;
  const float purity = static_cast<float>(chroma) / static_cast<float>(value > 1 ? value : 1);
  const int saturation = exact_floor(0.0f, purity, 255.0f);

  const int sector = by_255(6 * hue), odd = sector & 1;
  const float within = static_cast<float>(6 * hue - 255 * sector) / 255.0f;
  const float saturated = static_cast<float>(saturation) / 255.0f;
  // One channel falls in odd sectors, one rises in even ones.
  const float part = static_cast<float>(1 - odd) + static_cast<float>(2 * odd - 1) * within;
  const auto full = static_cast<float>(value);
  const int changing = exact_floor(full + 0.5f, -full, saturated * part);
  const int low = by_255(value * (255 - saturation) + 127);
  return {at_place(sector, value, low, changing), at_place(sector + 4, value, low, changing),
          at_place(sector + 2, value, low, changing)};
}

}  // namespace fusionloader
