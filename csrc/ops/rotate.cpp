// Rotation, with Pillow's exact ways for right angles.
#include "ops/warp.hpp"

namespace fusionloader {
namespace {

void half_turn(const Planes& in, Planes& out) {
  out.reset(in.channels(), in.width(), in.height());
  for (int channel = 0; channel < in.channels(); ++channel)
    std::reverse_copy(in.plane(channel), in.plane(channel) + in.size(), out.plane(channel));
}

constexpr int tile = 16;

// Counter-clockwise by 90 degrees (first column at the bottom), or clockwise. Tiles keep the lines
// of memory that a column touches in the first cache.
void quarter_turn(const Planes& in, Planes& out, bool clockwise) {
  const int width = in.width(), height = in.height();
  out.reset(in.channels(), height, width);
  for (int channel = 0; channel < in.channels(); ++channel) {
    const uint8_t* from = in.plane(channel);
    uint8_t* to = out.plane(channel);
    for (int top = 0; top < height; top += tile) {
      const int bottom = std::min(top + tile, height);
      for (int x = 0; x < width; ++x) {
        const ptrdiff_t row = clockwise ? x : width - 1 - x;
        for (int y = top; y < bottom; ++y)
          to[row * height + (clockwise ? height - 1 - y : y)] =
              from[static_cast<ptrdiff_t>(y) * width + x];
      }
    }
  }
}

}  // namespace

void rotate(const Planes& in, Planes& out, double angle, Interpolation interpolation, bool expand,
            const std::optional<Point>& centre, const Color& fill, GeometryWorkspace& workspace) {
  const double turn = whole_turn_remainder(angle);
  if (!centre) {
    if (turn == 0) return out.copy(in);
    if (turn == 180) return half_turn(in, out);
    if ((turn == 90 || turn == 270) && (expand || in.width() == in.height()))
      return quarter_turn(in, out, turn == 270);
  }
  int width = in.width(), height = in.height();
  const AffineMatrix matrix = rotation_matrix(
      turn, centre.value_or(Point{width / 2.0, height / 2.0}), expand, width, height);
  affine_transform(in, out, width, height, matrix, interpolation, fill, workspace);
}

}  // namespace fusionloader
