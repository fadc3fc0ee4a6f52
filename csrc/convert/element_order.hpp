#pragma once
// Writes the elements of an image in another order than channels x height x width.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "convert/convert_spec.hpp"

namespace fusionloader {

// The order splits into rows, channels and columns: an element's place is a sum of three terms, and
// of one for each time that it is repeated.
class ElementOrder {
 public:
  // Throws std::invalid_argument where the loops do not cover the image, each element as often as
  // any other, or leave gaps in the result.
  ElementOrder(const std::vector<OrderLoop>& loops, size_t width, size_t height, size_t channels);

  // How often the result has each element.
  size_t repeats() const { return repeats_.size(); }
  // Writes a row of one channel, `line`, to its places in the result.
  void write(const uint8_t* line, size_t y, size_t channel, size_t element_size,
             uint8_t* out) const;

 private:
  std::vector<size_t> rows_, channels_, runs_, repeats_;  // in elements of the result
  size_t run_ = 1;                                        // columns that stay side by side
};

}  // namespace fusionloader
