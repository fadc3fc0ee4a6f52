#pragma once
// Which point of an image each place of a warped one shows, with Pillow's roundings. Matrices are
// six numbers, perspectives eight.
#include <cmath>
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

// The pixel at a coordinate, or -1 outside.
FUSIONLOADER_BOTH int pixel_at(double position, int length) {
  return position >= 0 && position < length ? static_cast<int>(position) : -1;
}

FUSIONLOADER_BOTH bool is_integer(double value) {
  return floor(value) == value && fabs(value) < 1 << 30;
}

// Moves by whole pixels are the same with every filter.
FUSIONLOADER_BOTH bool moves_whole_pixels(const double* m) {
  return m[0] == 1 && m[1] == 0 && m[3] == 0 && m[4] == 1 && is_integer(m[2]) && is_integer(m[5]);
}

// Rounded to 16.16; what does not fit becomes what the processor's conversion gives.
FUSIONLOADER_BOTH uint32_t to_fixed(double value) {
  const double rounded = floor(value * 65536.0 + 0.5);
  const bool fits = rounded >= -2147483648.0 && rounded < 2147483648.0;
  return fits ? static_cast<uint32_t>(static_cast<int32_t>(rounded)) : 0x80000000u;
}

FUSIONLOADER_BOTH bool fits_fixed(const double* m, int x, int y) {
  return fabs(x * m[0] + y * m[1] + m[2]) < 32768.0 && fabs(x * m[3] + y * m[4] + m[5]) < 32768.0;
}

FUSIONLOADER_BOTH bool fits_fixed_everywhere(const double* m, int width, int height) {
  return fits_fixed(m, 0, 0) && fits_fixed(m, width, height) && fits_fixed(m, 0, height) &&
         fits_fixed(m, width, 0);
}

// Points in 16.16 fixed point, which wrap around as Pillow's do.
struct FixedLine {
  uint32_t x, y, step_x, step_y;
};

FUSIONLOADER_BOTH FixedLine first_fixed_line(const double* m) {
  return {to_fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), to_fixed(m[5] + m[3] * 0.5 + m[4] * 0.5),
          to_fixed(m[0]), to_fixed(m[3])};
}

// A row's points: what depends on the row alone, and the point of a column. The order of the
// additions is Pillow's: another one moves pixels.
struct RowOfPoints {
  double x, y, z;
};
FUSIONLOADER_BOTH RowOfPoints affine_row(const double* m, int y) {
  const double row = y + 0.5;
  return {m[1] * row, m[4] * row, 0.0};
}
FUSIONLOADER_BOTH void affine_point(const double* m, const RowOfPoints& row, int x, double& to_x,
                                    double& to_y) {
  const double column = x + 0.5;
  to_x = m[0] * column + row.x + m[2];
  to_y = m[3] * column + row.y + m[5];
}
FUSIONLOADER_BOTH RowOfPoints perspective_row(const double* m, int y) {
  const double row = y + 0.5;
  return {m[1] * row, m[4] * row, m[7] * row};
}
FUSIONLOADER_BOTH void perspective_point(const double* m, const RowOfPoints& row, int x,
                                         double& to_x, double& to_y) {
  const double column = x + 0.5, scale = m[6] * column + row.z + 1;
  to_x = (m[0] * column + row.x + m[2]) / scale;
  to_y = (m[3] * column + row.y + m[5]) / scale;
}

}  // namespace fusionloader
