#pragma once
// How images are mixed: weighted sums, and Pillow's Image.blend of two.
#include <vector>

#include "ops/planes.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Sums of levels times weights in float32; products and sums are each rounded, as by torch.
class WeightedSum {
 public:
  // Nothing has been added to the sums for images of that size.
  void start(const Planes& image);
  void add(const Planes& image, float weight, SimdLevel level);
  // Truncated as a cast of torch does; what is outside 0 .. 255 is clipped, no number becomes 0.
  void store(Planes& image, SimdLevel level);

  size_t bytes() const { return sums_.capacity() * sizeof(float); }
  void release() { std::vector<float>().swap(sums_); }

 private:
  std::vector<float> sums_;  // plane after plane, each in whole vectors
  bool empty_ = true;
};

// Pillow's Image.blend(image, other, weight), in place.
void blend_over(Planes& image, const Planes& other, double weight, SimdLevel level);

}  // namespace fusionloader
