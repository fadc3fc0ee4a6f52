#pragma once
// Inside of the geometric operations: results made row by row from packed pixels.
#include <algorithm>
#include <cstring>

#include "ops/geometry.hpp"
#include "ops/limits.hpp"
#include "ops/sampling.hpp"

namespace fusionloader {

// Grey images get their one level in all places.
inline uint32_t packed_color(const Color& color, int channels) {
  return channels == 3 ? packed(color[0], color[1], color[2])
                       : packed(color[0], color[0], color[0]);
}

inline void fill_planes(Planes& out, const Color& fill) {
  for (int channel = 0; channel < out.channels(); ++channel)
    std::memset(out.plane(channel), fill[static_cast<size_t>(channel)], out.size());
}

PackedImage packed_image(const Planes& in, GeometryWorkspace& workspace);

// Calls make_row(y, row) for every row of `out`, which has its size already; the row may be
// written in whole groups of PackedImage::slack pixels.
template <class MakeRow>
void make_rows(Planes& out, GeometryWorkspace& workspace, MakeRow make_row) {
  const SamplingKernels& kernels = sampling_kernels(workspace.simd);
  const auto width = static_cast<size_t>(out.width());
  grow(workspace.row, width + PackedImage::slack);
  uint8_t* planes[3];
  for (int channel = 0; channel < out.channels(); ++channel) planes[channel] = out.plane(channel);
  for (int y = 0; y < out.height(); ++y) {
    make_row(y, workspace.row.data());
    kernels.split(workspace.row.data(), width, out.channels(), planes);
    for (int channel = 0; channel < out.channels(); ++channel) planes[channel] += width;
  }
}

enum class PointMap { affine, perspective };

// Any map and filter, in double precision; `out` has its size already.
void warp(const Planes& in, Planes& out, PointMap map, const double* coefficients,
          Interpolation interpolation, const Color& fill, GeometryWorkspace& workspace);

}  // namespace fusionloader
