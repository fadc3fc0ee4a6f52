#pragma once
// RandomErasing on the converted result.
#include "plan/operations.hpp"
#include "plan/program.hpp"

namespace fusionloader {

struct ResultShape {
  int channels, width, height;
};

// Applies the EraseResult operations to `out`, a result of that conversion and shape. Throws
// std::invalid_argument for a rectangle that is not inside it, values that are not one pixel, and
// noise for elements other than float32.
void erase_results(const Parameters& parameters, const ConvertSpec& convert,
                   const ResultShape& shape, uint8_t* out);

}  // namespace fusionloader
