#pragma once
// How the last stage makes elements of levels.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusionloader {

// Every level of every channel mapped through `table`: channels x 256 elements of `element_size`
// bytes; the result is channels x height x width.
struct ConvertSpec {
  size_t element_size;
  bool is_float32;
  std::vector<uint8_t> table;
};

}  // namespace fusionloader
