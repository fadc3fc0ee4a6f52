#pragma once
// Steps that take each place of the result from somewhere in the image.
#include "arithmetic/points.hpp"
#include "device/canvas.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

// `read(x, y)` gives a pixel of the image.
template <class Team, class Read>
FUSIONLOADER_BOTH void take_window(const Team& team, const WindowStep step, int width, int height,
                                   uint32_t* out, const Read& read) {
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    const int at_x = step.x + (step.mirrored ? width - 1 - x : x);
    const int at_y = step.y + (step.upside_down ? height - 1 - y : y);
    const bool inside = at_x >= 0 && at_x < step.width && at_y >= 0 && at_y < step.height;
    out[i] = inside ? read(step.left + at_x, step.top + at_y) : step.fill;
  });
}

template <class Team>
FUSIONLOADER_BOTH void add_border(const Team& team, const BorderStep& step, const Canvas& canvas) {
  each_place(team, step.across.length, step.down.length, [&](int x, int y, uint32_t i) {
    const int from_x = step.across.source(x, step.mode), from_y = step.down.source(y, step.mode);
    canvas.next[i] = from_x < 0 || from_y < 0 ? step.fill : canvas.image().at(from_x, from_y);
  });
}

template <class Team>
FUSIONLOADER_BOTH void turn_quarter(const Team& team, bool clockwise, const Canvas& canvas) {
  const int width = canvas.height, height = canvas.width;
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    canvas.next[i] =
        canvas.image().at(clockwise ? y : height - 1 - y, clockwise ? width - 1 - x : x);
  });
}

// Coordinates are added up one after the other, which rounds as Pillow does: one lane makes those
// of an axis.
FUSIONLOADER_BOTH void fill_axis(double offset, double step, int length, int out_length,
                                 int* table) {
  double position = offset + step * 0.5;
  for (int i = 0; i < out_length; ++i, position += step) table[i] = pixel_at(position, length);
}

template <class Team>
FUSIONLOADER_BOTH void scale(Team& team, const Step& step, const Canvas& canvas) {
  const double* m = step.warp.coefficients;
  int *columns = static_cast<int*>(canvas.extra), *rows = columns + step.width;
  if (team.lane() == 0) fill_axis(m[2], m[0], canvas.width, step.width, columns);
  if (team.lane() == team.lanes() - 1) fill_axis(m[5], m[4], canvas.height, step.height, rows);
  team.sync();
  each_place(team, step.width, step.height, [&](int x, int y, uint32_t i) {
    const bool inside = columns[x] >= 0 && rows[y] >= 0;
    canvas.next[i] = inside ? canvas.image().at(columns[x], rows[y]) : step.warp.fill;
  });
}

// Fixed point wraps around, so that a product is what steps add up to.
template <class Team>
FUSIONLOADER_BOTH void warp_fixed(const Team& team, const Step& step, const Canvas& canvas) {
  const FixedStep by = step.fixed;
  each_place(team, step.width, step.height, [&](int x, int y, uint32_t i) {
    const auto column = static_cast<uint32_t>(x), row = static_cast<uint32_t>(y);
    canvas.next[i] =
        nearest_fixed(canvas.image(), by.line.x + by.line.step_x * column + by.row_x * row,
                      by.line.y + by.line.step_y * column + by.row_y * row, by.fill);
  });
}

// Rare, and plain for that: a lane takes a row, and adds up to where it begins.
template <class Team>
FUSIONLOADER_BOTH void warp_adding_up(const Team& team, const Step& step, const Canvas& canvas) {
  const double* m = step.warp.coefficients;
  each(team, step.height, [&](int y) {
    double at_x = m[2] + m[1] * 0.5 + m[0] * 0.5, at_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
    for (int row = 0; row < y; ++row, at_x += m[1], at_y += m[4]) {
    }
    uint32_t* out = canvas.next + static_cast<size_t>(y) * static_cast<size_t>(step.width);
    for (int x = 0; x < step.width; ++x, at_x += m[0], at_y += m[3]) {
      const int column = pixel_at(at_x, canvas.width), row = pixel_at(at_y, canvas.height);
      out[x] = column < 0 || row < 0 ? step.warp.fill : canvas.image().at(column, row);
    }
  });
}

template <bool perspective, class Sample, class Team>
FUSIONLOADER_BOTH void warp_points(const Team& team, const Step& step, const Canvas& canvas,
                                   const Sample& sample) {
  const double* m = step.warp.coefficients;
  each_place(team, step.width, step.height, [&](int x, int y, uint32_t i) {
    double at_x, at_y;
    if constexpr (perspective)
      perspective_point(m, perspective_row(m, y), x, at_x, at_y);
    else
      affine_point(m, affine_row(m, y), x, at_x, at_y);
    canvas.next[i] = sample(at_x, at_y);
  });
}

template <bool perspective, class Team>
FUSIONLOADER_BOTH void warp(const Team& team, const Step& step, const Canvas& canvas) {
  const PackedImage image = canvas.image();
  const uint32_t fill = step.warp.fill;
  switch (step.warp.filtering) {
    case Filtering::nearest:
      return warp_points<perspective>(
          team, step, canvas, [&](double x, double y) { return nearest(image, x, y, fill); });
    case Filtering::bilinear:
      return warp_points<perspective>(team, step, canvas, [&](double x, double y) {
        return filtered_or<2>(image, x, y, fill);
      });
    case Filtering::bicubic:
      return warp_points<perspective>(team, step, canvas, [&](double x, double y) {
        return filtered_or<4>(image, x, y, fill);
      });
  }
}

}  // namespace fusionloader::device
