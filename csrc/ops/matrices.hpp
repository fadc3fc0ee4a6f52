#pragma once
// The matrices of geometric operations, rounded as torchvision, timm and Pillow round them in
// Python. They map a point of the result to the point of the image that it shows.
#include <array>

#include "ops/rounding.hpp"

namespace fusionloader {

using AffineMatrix = std::array<double, 6>;
using PerspectiveCoefficients = std::array<double, 8>;

struct Point {
  double x, y;
};

// torchvision's _get_inverse_affine_matrix; angle and shears in degrees.
AffineMatrix inverse_affine_matrix(Point centre, double angle, Point translation, double scale,
                                   Point shear);

// As torchvision's RandAugment and its kin call F.affine.
AffineMatrix shear_x_matrix(double magnitude);
AffineMatrix shear_y_matrix(double magnitude);
AffineMatrix translate_x_matrix(double magnitude, int width, int height);
AffineMatrix translate_y_matrix(double magnitude, int width, int height);

// The same for tensors, whose matrices are about the middle.
AffineMatrix tensor_shear_matrix(Point magnitudes, int width, int height);
AffineMatrix tensor_translation_matrix(Point magnitudes);

// The size of a tensor's rotation by such a matrix, of what has all of the image: in float32, as
// torchvision's older functions or those of v2 round it.
void turned_tensor_size(const AffineMatrix& matrix, Rounding rounding, int& width, int& height);

// As timm calls Image.transform.
inline AffineMatrix plain_shear_x_matrix(double factor) { return {1, factor, 0, 0, 1, 0}; }
inline AffineMatrix plain_shear_y_matrix(double factor) { return {1, 0, 0, factor, 1, 0}; }
inline AffineMatrix plain_translate_x_matrix(double pixels) { return {1, 0, pixels, 0, 1, 0}; }
inline AffineMatrix plain_translate_y_matrix(double pixels) { return {1, 0, 0, 0, 1, pixels}; }

// Pillow's Image.rotate. `angle` is in [0, 360]; the size becomes the result's if `expand`.
double whole_turn_remainder(double angle);
AffineMatrix rotation_matrix(double angle, Point centre, bool expand, int& width, int& height);

}  // namespace fusionloader
