#pragma once
// torch's bilinear interpolate() of float32 tensors of three channels without antialias, in one
// thread (aten/src/ATen/native/cpu/UpSampleKernel.cpp, as its compiler makes it for processors with
// fused multiply-adds): each element is a sum of four products, of which the second is rounded.
#include <cstddef>

#include "simd/level.hpp"

namespace fusionloader {

// Of `channels` planes, one after the other. Sizes are positive.
void interpolate_planes(const float* in, size_t channels, size_t width, size_t height, float* out,
                        size_t out_width, size_t out_height, SimdLevel level);

}  // namespace fusionloader
