#pragma once
// Some pixels of a tensor at a time, as floats by channel, whatever way they lie in memory.
#include <cstddef>
#include <type_traits>

#include "simd/inline.hpp"

namespace fusionloader {

// Elements from one pixel to the next: planes, or channels side by side.
using PlanarStep = std::integral_constant<size_t, 1>;
using InterleavedStep = std::integral_constant<size_t, 3>;

// Elements from one channel to the next, where the compiler sees that they lie side by side.
template <class Step>
FUSIONLOADER_INLINE size_t channel_stride(Step step, size_t plane) {
  return step() == InterleavedStep::value ? 1 : plane;
}

struct TensorBlock {
  static constexpr size_t most = 64;
  float red[most], green[most], blue[most];
};

// The channels go together, so that the compiler loads whole vectors of pixels.
template <class Element, class Step>
FUSIONLOADER_INLINE void load_pixels(const Element* from, size_t plane, Step step, size_t count,
                                     TensorBlock& block) {
  const size_t green = channel_stride(step, plane), blue = 2 * green;
  for (size_t i = 0; i < count; ++i) {
    block.red[i] = static_cast<float>(from[i * step()]);
    block.green[i] = static_cast<float>(from[green + i * step()]);
    block.blue[i] = static_cast<float>(from[blue + i * step()]);
  }
}

}  // namespace fusionloader
