#pragma once
// How the last stage makes elements of levels.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusionloader {

// A loop over elements: `size` steps of `from` elements in the image, channels x height x width,
// and of `to` elements in the result. Steps of 0 in the image repeat its elements.
struct OrderLoop {
  size_t size, from, to;
};

// Every level of every channel mapped through `table`: channels x 256 elements of `element_size`
// bytes; the result is channels x height x width, or in the order of nested loops.
struct ConvertSpec {
  size_t element_size;
  bool is_float32;
  std::vector<uint8_t> table;
  std::vector<OrderLoop> order;
};

}  // namespace fusionloader
