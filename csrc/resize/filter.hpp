#pragma once
#include <cstdint>

namespace fusionloader {
// Pillow's filters, and torch's antialiased ones for 8-bit and for float32 tensors. The last is
// torch's for float32 tensors without antialias.
enum class Filter : uint8_t {
  box,
  bilinear,
  hamming,
  bicubic,
  lanczos,
  torch_bilinear,
  torch_bicubic,
  float_bilinear,
  float_bicubic,
  float_aliased_bilinear
};

// The part of an image that becomes a resized one. Single precision, as Pillow takes it. The filter
// also reads pixels around it.
struct SourceBox {
  float left, top, right, bottom;
};

constexpr bool is_torchs(Filter filter) {
  return filter == Filter::torch_bilinear || filter == Filter::torch_bicubic;
}

// In passes.
constexpr bool is_for_floats(Filter filter) {
  return filter == Filter::float_bilinear || filter == Filter::float_bicubic;
}

// When Pillow runs the vertical pass first: before 12.3 never; then for images more than a hundred
// times as high as wide; since 13 where it removes more than twice as many rows as the horizontal
// one removes columns. The order shows, because rows are rounded in between. Torch's horizontal
// pass always goes first.
enum class VerticalFirst : uint8_t { never, tall, cheaper };

}  // namespace fusionloader
