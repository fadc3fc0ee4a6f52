#pragma once
// torch's antialiased resize of a tensor of float32 or 8-bit planes, such as video frames: four or
// three planes at a time, or three that lie side by side.
#include <cstddef>

#include "resize/float_resampler.hpp"

namespace fusionloader {

// Images whose rows may lie anywhere: elements from one image, channel and row to the next.
// Columns lie side by side, or, if `interleaved`, the three channels of each.
struct StridedPlanes {
  size_t images, channels;
  int height, width;
  ptrdiff_t image_step, channel_step, row_step;
  bool interleaved;
};

// All planes to `out`, one after the other, or those of interleaved images interleaved, too, if
// `out_interleaved`. Throws std::invalid_argument for a filter that is not one for the elements.
template <class Element>
void resize_tensor(const Element* in, const StridedPlanes& planes, Filter filter, Element* out,
                   int height, int width, bool out_interleaved, SimdLevel simd);

}  // namespace fusionloader
