#pragma once
// Applies operations that change colors or warp, one after the other, to a whole image.
#include "ops/color.hpp"
#include "ops/geometry.hpp"
#include "ops/mix.hpp"
#include "ops/planes.hpp"
#include "ops/tensor_warp.hpp"
#include "plan/operations.hpp"

namespace fusionloader {

// Whether an operation can be part of a pass: a window, a resize or a flip.
bool is_of_a_pass(const Operation& operation);

// Whether an operation is a warp as torchvision does it to tensors.
bool is_tensor_warp(const Operation& operation);
// That warp of an image of `width` x `height` pixels.
TensorWarp tensor_warp(const Operation& operation, int width, int height);

class Augmenter {
 public:
  explicit Augmenter(SimdLevel simd);

  // Throws std::invalid_argument for arguments that make no sense for the image.
  void apply(const Operation& operation, Planes& image);
  void release_large_buffers();

 private:
  void apply(const ColorTo& color, Planes& image);
  void apply(const MixOf& mix, Planes& image);
  template <class Warp>
  void warp(Planes& image, Warp make);

  SimdLevel simd_;
  ColorScratch scratch_;
  GeometryWorkspace workspace_;
  Planes other_, mixed_, so_far_;
  WeightedSum sum_;
};

}  // namespace fusionloader
