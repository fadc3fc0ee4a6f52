#pragma once
// Replaces every level of a plane by what a table of 256 levels says.
#include <array>
#include <cstdint>
#include <vector>

#include "ops/planes.hpp"
#include "simd/level.hpp"

namespace fusionloader {

using LevelTable = std::array<uint8_t, 256>;

// Byte permutes over a whole register (AVX-512 VBMI), which SimdLevel::avx512 does not imply.
bool has_byte_permutes();

// Writes up to Planes::slack bytes behind `count`.
void look_up(uint8_t* plane, size_t count, const LevelTable& table, SimdLevel level);

void look_up(Planes& image, const LevelTable& table, SimdLevel level);

// One table of 256 levels for all channels, or one for each.
void look_up(Planes& image, const std::vector<uint8_t>& tables, SimdLevel level);

}  // namespace fusionloader
