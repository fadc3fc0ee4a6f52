#include "ops/perspective.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace fusionloader {
namespace {

constexpr size_t unknowns = 8;
using Row = std::array<double, unknowns + 1>;  // coefficients of an equation, its right side last

void eliminate(std::array<Row, unknowns>& rows) {
  for (size_t column = 0; column < unknowns; ++column) {
    const auto larger = [column](const Row& a, const Row& b) {
      return std::abs(a[column]) < std::abs(b[column]);
    };
    std::swap(rows[column], *std::max_element(rows.begin() + column, rows.end(), larger));
    const double pivot = rows[column][column];
    if (pivot == 0.0)
      throw std::invalid_argument("the corners of a perspective transform are on one line");
    for (size_t row = 0; row < unknowns; ++row) {
      if (row == column) continue;
      const double factor = rows[row][column] / pivot;
      for (size_t i = column; i <= unknowns; ++i) rows[row][i] -= factor * rows[column][i];
    }
  }
}

}  // namespace

PerspectiveCoefficients perspective_coefficients(const Corners& start, const Corners& end) {
  std::array<Row, unknowns> rows{};
  for (size_t i = 0; i < start.size(); ++i) {
    const Point to = end[i], from = start[i];
    rows[2 * i] = {to.x, to.y, 1, 0, 0, 0, -from.x * to.x, -from.x * to.y, from.x};
    rows[2 * i + 1] = {0, 0, 0, to.x, to.y, 1, -from.y * to.x, -from.y * to.y, from.y};
  }
  eliminate(rows);
  PerspectiveCoefficients solved{};
  for (size_t i = 0; i < unknowns; ++i)
    solved[i] = static_cast<float>(rows[i][unknowns] / rows[i][i]);
  return solved;
}

}  // namespace fusionloader
