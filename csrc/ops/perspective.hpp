#pragma once
// The coefficients of a perspective transform from where four corners go.
#include <array>

#include "ops/matrices.hpp"

namespace fusionloader {

using Corners = std::array<Point, 4>;

// torchvision's _get_perspective_coeffs: solved in float64, rounded to float32. `start` are corners
// of the image, `end` where they lie in the result. Throws std::invalid_argument where there
// is no solution; three corners on a line may also give coefficients without sense, as there.
PerspectiveCoefficients perspective_coefficients(const Corners& start, const Corners& end);

}  // namespace fusionloader
