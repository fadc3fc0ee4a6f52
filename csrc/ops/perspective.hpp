#pragma once
// The coefficients of a perspective transform from where four corners go.
#include <array>

#include "ops/matrices.hpp"

namespace fusionloader {

using Corners = std::array<Point, 4>;

// torchvision's _get_perspective_coeffs: solved in float64, rounded to float32. `start` are corners
// of the image, `end` where they lie in the result. Throws std::invalid_argument where three
// corners are on a line, so that there is no solution.
PerspectiveCoefficients perspective_coefficients(const Corners& start, const Corners& end);

}  // namespace fusionloader
