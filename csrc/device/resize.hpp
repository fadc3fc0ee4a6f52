#pragma once
// A resize as Pillow does it: two passes in fixed point, rounded to 8 bits in between.
#include "arithmetic/sampling.hpp"
#include "arithmetic/weighing.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

// One output of a pass across or `down`, at (x, y); `read(x, y)` gives a pixel of what it reads.
template <class Read>
FUSIONLOADER_BOTH uint32_t weigh(const ResizeAxis& axis, const uint8_t* data, bool down, int x,
                                 int y, const Read& read) {
  const int output = down ? y : x;
  const auto* first = reinterpret_cast<const int32_t*>(data + axis.data) + output;
  const int32_t *count = first + axis.outputs, *weight = count + axis.outputs;
  int32_t sums[3] = {half_a_level, half_a_level, half_a_level};
  for (int t = 0; t < *count; ++t, weight += axis.outputs) {
    const uint32_t pixel = read(down ? x : *first + t, down ? *first + t : y);
    for (int channel = 0; channel < 3; ++channel)
      sums[channel] += channel_level(pixel, channel) * *weight;
  }
  return packed(rounded_level(sums[0]), rounded_level(sums[1]), rounded_level(sums[2]));
}

// `read(x, y)` gives a pixel of the image; `between` has room for what the first pass makes.
template <class Team, class Read>
FUSIONLOADER_BOTH void resize(Team& team, const ResizeStep step, const uint8_t* data,
                              uint32_t* between, uint32_t* out, const Read& read) {
  const ResizeAxis &across = step.across, &down = step.down;
  const bool down_first = step.down_first;
  const int width = down_first ? across.inputs : across.outputs;
  const int height = down_first ? down.outputs : down.inputs;
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    between[i] = weigh(down_first ? down : across, data, down_first, x, y,
                       [&](int at_x, int at_y) { return read(step.left + at_x, step.top + at_y); });
  });
  team.sync();
  const PackedImage image{between, width, height};
  each_place(team, across.outputs, down.outputs, [&](int x, int y, uint32_t i) {
    out[i] = weigh(down_first ? across : down, data, !down_first, x, y,
                   [&](int at_x, int at_y) { return image.at(at_x, at_y); });
  });
}

}  // namespace fusionloader::device
