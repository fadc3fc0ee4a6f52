#pragma once
// Geometric operations, with the pixels that Pillow gives. `in` and `out` must differ.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "arithmetic/borders.hpp"
#include "ops/matrices.hpp"
#include "ops/planes.hpp"
#include "simd/level.hpp"

namespace fusionloader {

enum class Interpolation { nearest, bilinear, bicubic };

// A run of columns that one shear moves by the same number of rows.
struct ColumnRun {
  ptrdiff_t column, rows, offset;
};

// What calls need besides the images; kept between calls, so that warm ones allocate nothing.
struct GeometryWorkspace {
  SimdLevel simd = best_simd_level();
  std::vector<uint32_t> packed, row;
  std::vector<float> floats;
  std::vector<double> xs, ys;
  std::vector<int> columns, rows;
  std::vector<ColumnRun> runs;

  void release() { *this = GeometryWorkspace{simd, {}, {}, {}, {}, {}, {}, {}, {}}; }
};

// Image.transform(size, AFFINE, matrix, interpolation, fillcolor=fill)
void affine_transform(const Planes& in, Planes& out, int out_width, int out_height,
                      const AffineMatrix& matrix, Interpolation interpolation, const Color& fill,
                      GeometryWorkspace& workspace);

// Image.transform(image.size, PERSPECTIVE, coefficients, interpolation, fillcolor=fill)
void perspective_transform(const Planes& in, Planes& out,
                           const PerspectiveCoefficients& coefficients, Interpolation interpolation,
                           const Color& fill, GeometryWorkspace& workspace);

// Image.rotate(angle, interpolation, expand, centre, fillcolor=fill), counter-clockwise degrees
void rotate(const Planes& in, Planes& out, double angle, Interpolation interpolation, bool expand,
            const std::optional<Point>& centre, const Color& fill, GeometryWorkspace& workspace);

// torchvision's pad; negative amounts crop. Throws std::invalid_argument where nothing remains to
// take the border from, or where the result would have a negative size.
struct Padding {
  int left, top, right, bottom;
};
// What each place of an axis of `length` pixels shows; throws as pad() does.
PaddedAxis padded_axis(int length, int before, int after, PadMode mode);
void pad(const Planes& in, Planes& out, const Padding& padding, PadMode mode, const Color& fill,
         GeometryWorkspace& workspace);

}  // namespace fusionloader
