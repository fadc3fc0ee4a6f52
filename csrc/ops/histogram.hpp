#pragma once
// What autocontrast and equalize need to know about a plane, and the tables they make of it.
#include "ops/lookup.hpp"
#include "ops/rounding.hpp"

namespace fusionloader {

struct LevelRange {
  int least, most;
};
using Histogram = std::array<uint32_t, 256>;

LevelRange range_of_levels(const uint8_t* plane, size_t count, SimdLevel level);
Histogram histogram(const uint8_t* plane, size_t count);

// Pillow's ImageOps.autocontrast without cut-off, or torchvision's; `least` is below `most`.
LevelTable stretching_table(LevelRange range, Rounding rounding);

// Pillow's ImageOps.equalize; false where it leaves the plane as it is.
bool equalizing_table(const Histogram& counts, LevelTable& table);

}  // namespace fusionloader
