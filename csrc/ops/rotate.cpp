// Rotation, with Pillow's exact ways for right angles.
#include <algorithm>
#include <cstring>

#include "ops/warp.hpp"

namespace fusionloader {
namespace {

void half_turn(const Planes& in, Planes& out) {
  out.reset(in.channels(), in.width(), in.height());
  for (int channel = 0; channel < in.channels(); ++channel)
    std::reverse_copy(in.plane(channel), in.plane(channel) + in.size(), out.plane(channel));
}

constexpr int tile = 8;
constexpr int strip = 256;  // columns whose lines of memory stay in the first cache

// Exchanges the upper parts of `a` that `mask` says of its lower ones with the lower of `b`.
void exchange(uint64_t& a, uint64_t& b, int shift, uint64_t mask) {
  const uint64_t changed = ((a >> shift) ^ b) & mask;
  b ^= changed;
  a ^= changed << shift;
}

// Byte x of row y becomes byte y of row x.
void transpose(uint64_t (&rows)[tile]) {
  for (const int y : {0, 1, 2, 3}) exchange(rows[y], rows[y + 4], 32, 0x00000000FFFFFFFF);
  for (const int y : {0, 1, 4, 5}) exchange(rows[y], rows[y + 2], 16, 0x0000FFFF0000FFFF);
  for (const int y : {0, 2, 4, 6}) exchange(rows[y], rows[y + 1], 8, 0x00FF00FF00FF00FF);
}

// A plane's quarter turn: counter-clockwise (first column at the bottom), or clockwise.
struct QuarterTurn {
  const uint8_t* from;
  uint8_t* to;
  int width, height;
  bool clockwise;

  uint8_t* place(int x, int y) const {
    const ptrdiff_t row = clockwise ? x : width - 1 - x;
    return to + row * height + (clockwise ? height - 1 - y : y);
  }
  void turn_tile(int left, int top) const {
    uint64_t rows[tile];
    for (int y = 0; y < tile; ++y) {
      const ptrdiff_t row = clockwise ? top + tile - 1 - y : top + y;
      std::memcpy(&rows[y], from + row * width + left, tile);
    }
    transpose(rows);
    for (int x = 0; x < tile; ++x)
      std::memcpy(place(left + x, clockwise ? top + tile - 1 : top), &rows[x], tile);
  }
  void turn_pixels(int left, int top, int right, int bottom) const {
    for (int x = left; x < right; ++x)
      for (int y = top; y < bottom; ++y) *place(x, y) = from[static_cast<ptrdiff_t>(y) * width + x];
  }
  void turn() const {
    const int right = width / tile * tile, bottom = height / tile * tile;
    for (int begin = 0; begin < right; begin += strip)
      for (int top = 0; top < bottom; top += tile)
        for (int left = begin; left < std::min(begin + strip, right); left += tile)
          turn_tile(left, top);
    turn_pixels(right, 0, width, bottom);
    turn_pixels(0, bottom, width, height);
  }
};

void quarter_turn(const Planes& in, Planes& out, bool clockwise) {
  out.reset(in.channels(), in.height(), in.width());
  for (int channel = 0; channel < in.channels(); ++channel)
    QuarterTurn{in.plane(channel), out.plane(channel), in.width(), in.height(), clockwise}.turn();
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
