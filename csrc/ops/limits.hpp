#pragma once
// Sizes beyond which no image is made: parameters that ask for more are refused, not allocated.
// What may be kept of the memory that an image took, and how deep plans may be nested.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace fusionloader {

constexpr int longest_side = 1 << 20;
constexpr int64_t most_pixels = 1 << 27;  // 512 MiB of packed pixels

// Sizes and places of operations may be meant for larger images; sums of these still fit an int.
constexpr int largest_number = 1 << 24;

// How many lists of stages or operations hold one another: one more than MOST_NESTED of
// fusionloader/transforms/plan/arguments.py, as the innermost transform may be a list too
// (RandomInvert is).
constexpr int deepest_nesting = 33;

// Larger buffers are given back after an image.
constexpr size_t largest_kept_buffer = size_t{16} << 20;

template <class Value>
void grow(std::vector<Value>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

inline void require_possible_size(int64_t width, int64_t height) {
  if (width > longest_side || height > longest_side || width * height > most_pixels)
    throw std::invalid_argument("a size of " + std::to_string(width) + " x " +
                                std::to_string(height) + " pixels is not possible");
}

// For `depth` lists around a list.
inline void require_possible_nesting(int depth) {
  if (depth > deepest_nesting)
    throw std::invalid_argument("a plan's lists hold one another more than " +
                                std::to_string(deepest_nesting) + " deep");
}

}  // namespace fusionloader
