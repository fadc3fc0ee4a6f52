#pragma once
// The chunks of a PNG file, read and checked.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/views.hpp"

namespace fusionloader {

// How the samples of a pixel lie in the file, 8 bit each.
enum class PngColor { grey, rgb, palette, rgba };

struct PngFile {
  int width = 0, height = 0;
  PngColor color = PngColor::rgb;
  std::array<uint8_t, 3 * 256> palette{};  // red, green, blue
  int colors = 0;                          // in the palette
  std::vector<ByteView> data;              // what the IDAT chunks hold

  size_t samples() const { return color == PngColor::rgb ? 3 : color == PngColor::rgba ? 4 : 1; }
  // Of a row: its filter's number, and its pixels.
  size_t row_bytes() const { return 1 + samples() * static_cast<size_t>(width); }
};

bool begins_as_png(ByteView encoded);

// False for everything that is not plain and whole: a kind of pixels that is not above,
// interlacing, animation, transparent colors; a wrong checksum, a chunk out of place, or one for
// which Pillow might raise. Whatever Pillow makes of these, or says, is its business.
bool read_png_file(ByteView encoded, PngFile& file);

}  // namespace fusionloader
