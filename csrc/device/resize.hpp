#pragma once
// A resize as Pillow does it: two passes in fixed point, rounded to 8 bits in between.
#include "arithmetic/sampling.hpp"
#include "arithmetic/weighing.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

// One output of an axis; `read(input)` gives a pixel.
template <class Read>
FUSIONLOADER_BOTH uint32_t weigh(const ResizeAxis& axis, const uint8_t* data, int output,
                                 const Read& read) {
  const auto* first = reinterpret_cast<const int32_t*>(data + axis.data);
  const int32_t *count = first + axis.outputs, *taps = count + axis.outputs;
  int32_t sums[3] = {half_a_level, half_a_level, half_a_level};
  for (int t = 0; t < count[output]; ++t) {
    const int32_t weight = taps[t * axis.outputs + output];
    const uint32_t pixel = read(first[output] + t);
    for (int channel = 0; channel < 3; ++channel)
      sums[channel] += channel_level(pixel, channel) * weight;
  }
  return packed(rounded_level(sums[0]), rounded_level(sums[1]), rounded_level(sums[2]));
}

// `read(x, y)` gives a pixel of the image; `between` has room for what the
// first pass makes.
template <class Team, class Read>
FUSIONLOADER_BOTH void resize(Team& team, const ResizeStep step, const uint8_t* data,
                              uint32_t* between, uint32_t* out, const Read& read) {
  const ResizeAxis across = step.across, down = step.down;
  const int width = step.down_first ? across.inputs : across.outputs;
  const int height = step.down_first ? down.outputs : down.inputs;
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    between[i] =
        step.down_first
            ? weigh(down, data, y, [&](int at) { return read(step.left + x, step.top + at); })
            : weigh(across, data, x, [&](int at) { return read(step.left + at, step.top + y); });
  });
  team.sync();
  const PackedImage image{between, width, height};
  each_place(team, across.outputs, down.outputs, [&](int x, int y, uint32_t i) {
    out[i] = step.down_first ? weigh(across, data, x, [&](int at) { return image.at(at, y); })
                             : weigh(down, data, y, [&](int at) { return image.at(x, at); });
  });
}

}  // namespace fusionloader::device
