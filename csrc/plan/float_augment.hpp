#pragma once
// Changes of colors and warps of floats: on planes, with the bits that torchvision gives float32
// tensors.
#include <vector>

#include "ops/geometry.hpp"
#include "ops/tensor_blur.hpp"
#include "ops/tensor_color.hpp"
#include "plan/operations.hpp"

namespace fusionloader {

// Whether an operation changes the colors of floats, other than by normalizing them, warps them, or
// resizes them without antialias.
bool changes_floats(const Operation& operation);

struct FloatSize {
  int width, height;
};
// The size of an image after such an operation, or NormalizeBy. Throws std::invalid_argument for
// impossible sizes.
FloatSize size_after(const Operation& operation, FloatSize size);

class FloatAugmenter {
 public:
  explicit FloatAugmenter(SimdLevel simd) : simd_(simd) { workspace_.simd = simd; }

  // Gives memory for the 1 or 3 planes of an image, one after the other, to be filled.
  float* begin(size_t channels, int width, int height);
  // Does the operations, which changes_floats() knows, and NormalizeBy. Returns the planes, which
  // are at `out` if there is one. Throws std::invalid_argument for values that make no sense.
  const float* run(const std::vector<Operation>& operations, float* out);

  void release_large_buffers();

 private:
  void apply(const Operation& operation, const float* from, float* to);
  void apply(const ColorTo& color, const float* from, float* to);
  void apply(const BlurWith& blur, const float* from, float* to);
  void normalize(const NormalizeBy& by, const float* from, float* to) const;
  float mean_of_grey(const float* from, bool fused);

  SimdLevel simd_;
  GeometryWorkspace workspace_;
  size_t channels_ = 3;
  TensorShape shape_{1, 0, 0, false};
  std::vector<float> image_, other_, grey_;
  BlurMemory blurred_;
};

}  // namespace fusionloader
