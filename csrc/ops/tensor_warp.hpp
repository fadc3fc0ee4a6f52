#pragma once
// torchvision's warps of tensors, in float32: a grid of places, and grid_sample of what is there
// with zeros outside (aten/src/ATen/native/cpu/GridSamplerKernel.cpp, as its compiler makes it for
// processors with fused multiply-adds).
#include <array>
#include <variant>
#include <vector>

#include "ops/geometry.hpp"
#include "ops/rounding.hpp"
#include "ops/tensor_color.hpp"

namespace fusionloader {

struct TensorWarp {
  // An affine matrix is about the middle of the image. The last is a grid: x and y of each place of
  // the result, from -1 to 1.
  std::variant<AffineMatrix, PerspectiveCoefficients, const float*> map;
  int width, height;            // of the result
  Interpolation interpolation;  // nearest or bilinear
  Rounding rounding;            // how the fill is blended with the image at its sides
  std::array<float, 3> fill;
};

// `in` and `out` must differ.
void warp_tensor(const Planes& in, Planes& out, const TensorWarp& warp,
                 GeometryWorkspace& workspace);

// The same of each image of a tensor. `out` is planar, with `planes` planes for each image, of
// which the first three are written. Fills of uint8_t are 0 to 255.
template <class Element>
void warp_tensor(const Element* in, const TensorShape& shape, Element* out, size_t planes,
                 const TensorWarp& warp, GeometryWorkspace& workspace);

// The same of one planar image of 1 or 3 channels.
void warp_planes(const float* in, size_t channels, const TensorShape& shape, float* out,
                 const TensorWarp& warp, GeometryWorkspace& workspace);

}  // namespace fusionloader
