#pragma once
// Sizes beyond which no image is made: parameters that ask for more are refused, not allocated.
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fusionloader {

constexpr int64_t longest_side = 1 << 20;
constexpr int64_t most_pixels = 1 << 27;  // 512 MiB of packed pixels

inline void require_possible_size(int64_t width, int64_t height) {
  if (width > longest_side || height > longest_side || width * height > most_pixels)
    throw std::invalid_argument("a size of " + std::to_string(width) + " x " +
                                std::to_string(height) + " pixels is not possible");
}

}  // namespace fusionloader
