#pragma once
// The way out: levels become elements of the result, and rectangles of it are erased.
#include "device/canvas.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

struct ResultPlace {
  int channels, width, height;
  bool planar;

  FUSIONLOADER_BOTH size_t of(int channel, size_t pixel) const {
    return planar ? static_cast<size_t>(channel) * static_cast<size_t>(width) *
                            static_cast<size_t>(height) +
                        pixel
                  : pixel * static_cast<size_t>(channels) + static_cast<size_t>(channel);
  }
};

template <class Element, class Team>
FUSIONLOADER_BOTH void convert_as(Team& team, const uint8_t* table, const Canvas& canvas,
                                  const ResultPlace& place, void* out) {
  auto* elements = reinterpret_cast<Element*>(team.scratch().elements);
  const auto* given = reinterpret_cast<const Element*>(table);
  each(team, place.channels * 256, [&](int i) { elements[i] = given[i]; });
  team.sync();
  auto* result = static_cast<Element*>(out);
  each(team, canvas.size(), [&](int i) {
    const uint32_t pixel = canvas.now[i];
    for (int channel = 0; channel < place.channels; ++channel)
      result[place.of(channel, static_cast<size_t>(i))] =
          elements[256 * channel + channel_level(pixel, channel)];
  });
}

template <class Team>
FUSIONLOADER_BOTH void convert(Team& team, int element_size, const uint8_t* table,
                               const Canvas& canvas, const ResultPlace& place, void* out) {
  switch (element_size) {
    case 1:
      return convert_as<uint8_t>(team, table, canvas, place, out);
    case 2:
      return convert_as<uint16_t>(team, table, canvas, place, out);
    case 4:
      return convert_as<uint32_t>(team, table, canvas, place, out);
    default:
      return convert_as<uint64_t>(team, table, canvas, place, out);
  }
}

template <class Element, class Team>
FUSIONLOADER_BOTH void erase_result_as(const Team& team, const Erasure& box, const uint8_t* values,
                                       const ResultPlace& place, void* out) {
  const auto* given = reinterpret_cast<const Element*>(values);
  auto* result = static_cast<Element*>(out);
  for (int channel = 0; channel < place.channels; ++channel)
    each_place(team, box.width, box.height, [&](int x, int y, uint32_t) {
      const size_t pixel = static_cast<size_t>(box.y + y) * static_cast<size_t>(place.width) +
                           static_cast<size_t>(box.x + x);
      result[place.of(channel, pixel)] = given[channel];
    });
}

template <class Team>
FUSIONLOADER_BOTH void erase_result(const Team& team, const Erasure& box, int element_size,
                                    const uint8_t* values, const ResultPlace& place, void* out) {
  switch (element_size) {
    case 1:
      return erase_result_as<uint8_t>(team, box, values, place, out);
    case 2:
      return erase_result_as<uint16_t>(team, box, values, place, out);
    case 4:
      return erase_result_as<uint32_t>(team, box, values, place, out);
    default:
      return erase_result_as<uint64_t>(team, box, values, place, out);
  }
}

}  // namespace fusionloader::device
