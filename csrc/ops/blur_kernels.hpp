#pragma once
// The weights of blurs from their parameters.
#include "arithmetic/blurs.hpp"

namespace fusionloader {

// One side of a Gaussian. Throws std::invalid_argument for sizes that are even or beyond reason and
// for sigmas that are not positive.
HalfKernel half_kernel(int size, double sigma);
// Throws std::invalid_argument where an image of these sizes cannot be continued that far.
void require_room_for_kernels(int kernel_width, int kernel_height, int width, int height);

// The box that, applied thrice, comes close to a Gaussian of that radius; false where it leaves the
// image as it is. Throws std::invalid_argument for radii without sense.
bool box_for_radius(double radius, Box& box);

}  // namespace fusionloader
