#pragma once
#include <cstdint>

namespace fusionloader {
// Pillow's filters, and torch's antialiased ones for 8-bit tensors.
enum class Filter : uint8_t {
  box,
  bilinear,
  hamming,
  bicubic,
  lanczos,
  torch_bilinear,
  torch_bicubic
};

constexpr bool is_torchs(Filter filter) {
  return filter == Filter::torch_bilinear || filter == Filter::torch_bicubic;
}
}  // namespace fusionloader
