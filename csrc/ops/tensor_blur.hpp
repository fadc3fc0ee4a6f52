#pragma once
// torchvision's gaussian_blur of tensors: a convolution with a square of weights, of floats or
// levels, whose products torch adds up row by row, with one rounding each.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simd/level.hpp"

namespace fusionloader {

// Odd numbers of rows and columns; the weights row by row.
struct BlurSquare {
  int height, width;
  std::vector<float> weights;
};

// Most rows and columns of a square that is made.
constexpr int most_blurred = 101;

// The weights of v2, where torch's vectors have 8 or 16 floats. Throws std::invalid_argument for
// sizes that are even or too large, and sigmas that are not positive.
BlurSquare blur_square(int height, int width, float sigma_y, float sigma_x, int lanes);

// Memory that is kept from one call to the next.
using BlurMemory = std::vector<float>;

// A plane of `height` x `width` elements, uint8_t or float, which lie `step` elements apart; larger
// than half of the square. `out` has them side by side, and may be `in` if `step` is 1.
template <class Element>
void blur_plane(const Element* in, size_t step, Element* out, int height, int width,
                const BlurSquare& square, BlurMemory& memory, SimdLevel level);

}  // namespace fusionloader
