#pragma once
// What follows the pixels in a row, where other code runs the last stages of the plan: what was
// drawn for these stages.
#include <cstddef>
#include <cstdint>

#include "plan/operations.hpp"

namespace fusionloader {

class RowTail {
 public:
  virtual ~RowTail() = default;
  virtual size_t bytes() const = 0;
  // Makes the row one without a sample, until write() is called.
  virtual void clear(uint8_t* to) = 0;
  // Throws std::invalid_argument for operations that make no sense for the pixels.
  virtual void write(const Parameters& operations, uint8_t* to) = 0;
};

}  // namespace fusionloader
