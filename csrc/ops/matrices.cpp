#include "ops/matrices.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr double pi = 3.14159265358979323846;

// Not inlined: side by side, the compiler would merge them into sincos, which need not agree with
// the separate functions that Python calls.
[[gnu::noinline]] double sine(double angle) { return std::sin(angle); }
[[gnu::noinline]] double cosine(double angle) { return std::cos(angle); }

double radians(double degrees) { return degrees * (pi / 180.0); }
double degrees(double radians) { return radians * (180.0 / pi); }

// Python's round(value, 15): correctly rounded in decimal, which no scaling in binary gives.
double round_15_digits(double value) {
  char digits[32];
  const auto written =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, 15);
  double rounded = 0;
  std::from_chars(digits, written.ptr, rounded);
  return rounded;
}

Point apply(const AffineMatrix& m, Point p) {
  return {m[0] * p.x + m[1] * p.y + m[2], m[3] * p.x + m[4] * p.y + m[5]};
}

}  // namespace

AffineMatrix inverse_affine_matrix(Point centre, double angle, Point translation, double scale,
                                   Point shear) {
  const double rotation = radians(angle), shear_x = radians(shear.x), shear_y = radians(shear.y);
  const double cos_turned = cosine(rotation - shear_y), sin_turned = sine(rotation - shear_y);
  const double cos_shear = cosine(shear_y), tan_shear = std::tan(shear_x);
  const double a = cos_turned / cos_shear;
  const double b = -cos_turned * tan_shear / cos_shear - sine(rotation);
  const double c = sin_turned / cos_shear;
  const double d = -sin_turned * tan_shear / cos_shear + cosine(rotation);
  AffineMatrix m{d / scale, -b / scale, 0, -c / scale, a / scale, 0};
  const double x = -centre.x - translation.x, y = -centre.y - translation.y;
  m[2] = m[0] * x + m[1] * y + centre.x;
  m[5] = m[3] * x + m[4] * y + centre.y;
  return m;
}

AffineMatrix shear_x_matrix(double magnitude) {
  return inverse_affine_matrix({0, 0}, 0, {0, 0}, 1, {degrees(std::atan(magnitude)), 0});
}

AffineMatrix shear_y_matrix(double magnitude) {
  return inverse_affine_matrix({0, 0}, 0, {0, 0}, 1, {0, degrees(std::atan(magnitude))});
}

AffineMatrix translate_x_matrix(double magnitude, int width, int height) {
  return inverse_affine_matrix({width * 0.5, height * 0.5}, 0, {std::trunc(magnitude), 0}, 1,
                               {0, 0});
}

AffineMatrix translate_y_matrix(double magnitude, int width, int height) {
  return inverse_affine_matrix({width * 0.5, height * 0.5}, 0, {0, std::trunc(magnitude)}, 1,
                               {0, 0});
}

AffineMatrix tensor_shear_matrix(Point magnitudes, int width, int height) {
  return inverse_affine_matrix(
      {width * -0.5, height * -0.5}, 0, {0, 0}, 1,
      {degrees(std::atan(magnitudes.x)), degrees(std::atan(magnitudes.y))});
}

AffineMatrix tensor_translation_matrix(Point magnitudes) {
  return inverse_affine_matrix({0, 0}, 0, {std::trunc(magnitudes.x), std::trunc(magnitudes.y)}, 1,
                               {0, 0});
}

void turned_tensor_size(const AffineMatrix& matrix, Rounding rounding, int& width, int& height) {
  const float tolerance = 1e-4f, whole = 1.0f / 1e-4f;
  const float half_width = 0.5f * static_cast<float>(width);
  const float half_height = 0.5f * static_cast<float>(height);
  const auto extent = [&](const double* row, float half) {
    const auto a = static_cast<float>(row[0]), b = static_cast<float>(row[1]);
    const auto shift = static_cast<float>(row[2]);
    float least = std::numeric_limits<float>::max(), most = -least;
    for (const float x : {-half_width, half_width})
      for (const float y : {-half_height, half_height}) {
        // The library that multiplies for torch adds in one of two orders.
        const float at = is_unfused(rounding) ? (x * a + y * b) + shift : (x * a + shift) + y * b;
        least = std::min(least, at);
        most = std::max(most, at);
      }
    const auto cut_off = [&](float place) {
      return std::trunc(is_v1(rounding) ? place / tolerance : place * whole) * tolerance;
    };
    return std::ceil(cut_off(most + half)) - std::floor(cut_off(least + half));
  };
  const float new_width = extent(matrix.data(), half_width);
  const float new_height = extent(matrix.data() + 3, half_height);
  if (!(new_width <= longest_side && new_height <= longest_side))
    throw std::invalid_argument("a rotated image that large is not possible");
  width = static_cast<int>(new_width);
  height = static_cast<int>(new_height);
  require_possible_size(width, height);
}

double whole_turn_remainder(double angle) {
  const double remainder = std::fmod(angle, 360.0);
  return remainder < 0 ? remainder + 360.0 : remainder;
}

AffineMatrix rotation_matrix(double angle, Point centre, bool expand, int& width, int& height) {
  const double turn = -radians(angle);
  const double cos_turn = round_15_digits(cosine(turn)), sin_turn = round_15_digits(sine(turn));
  AffineMatrix m{cos_turn, sin_turn, 0, -sin_turn, cos_turn, 0};
  const Point moved = apply(m, {-centre.x, -centre.y});
  m[2] = moved.x + centre.x;
  m[5] = moved.y + centre.y;
  if (!expand) return m;
  const Point corners[] = {apply(m, {0, 0}), apply(m, {static_cast<double>(width), 0}),
                           apply(m, {static_cast<double>(width), static_cast<double>(height)}),
                           apply(m, {0, static_cast<double>(height)})};
  const auto by_x = [](Point p, Point q) { return p.x < q.x; };
  const auto by_y = [](Point p, Point q) { return p.y < q.y; };
  const auto [left, right] = std::minmax_element(std::begin(corners), std::end(corners), by_x);
  const auto [top, bottom] = std::minmax_element(std::begin(corners), std::end(corners), by_y);
  const double exact_width = std::ceil(right->x) - std::floor(left->x);
  const double exact_height = std::ceil(bottom->y) - std::floor(top->y);
  if (!(exact_width >= 0 && exact_width <= longest_side && exact_height >= 0 &&
        exact_height <= longest_side))
    throw std::invalid_argument("a rotated image that large is not possible");
  const int new_width = static_cast<int>(exact_width);
  const int new_height = static_cast<int>(exact_height);
  require_possible_size(new_width, new_height);
  const Point origin = apply(m, {-(new_width - width) / 2.0, -(new_height - height) / 2.0});
  m[2] = origin.x;
  m[5] = origin.y;
  width = new_width;
  height = new_height;
  return m;
}

}  // namespace fusionloader
