#pragma once
// What stands for places outside an image.
#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

enum class PadMode { constant, edge, reflect, symmetric };

// The pixel of `length` that stands for `position`, which may be outside; -1 for the fill.
FUSIONLOADER_BOTH int source_of(int position, int length, PadMode mode) {
  if (position >= 0 && position < length) return position;
  if (mode == PadMode::constant) return -1;
  if (mode == PadMode::edge || (mode == PadMode::reflect && length == 1))
    return clamped(position, 0, length - 1);
  const int period = 2 * (mode == PadMode::reflect ? length - 1 : length);
  const int phase = (position % period + period) % period;
  if (phase < length) return phase;
  return mode == PadMode::reflect ? period - phase : period - 1 - phase;
}

// One axis of a padded image: `kept` of its pixels, from `cropped` on, then the border around them.
struct PaddedAxis {
  int cropped, kept, before, length;

  // The pixel that a place of the padded axis shows, or -1 for the fill.
  FUSIONLOADER_BOTH int source(int place, PadMode mode) const {
    const int from = source_of(place - before - cropped, kept, mode);
    return from < 0 ? -1 : from + cropped;
  }
};

// A blur's row goes on mirrored about its outermost pixel; `at` is less than a length outside.
FUSIONLOADER_BOTH int reflected(int at, int length) {
  return at < 0 ? -at : at >= length ? 2 * (length - 1) - at : at;
}

}  // namespace fusionloader
