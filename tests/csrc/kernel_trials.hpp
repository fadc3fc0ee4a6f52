#pragma once
// What the programs that try vector kernels share.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "simd/level.hpp"

namespace fusionloader {

inline std::mt19937 generator(1);

inline int between(int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(generator);
}

[[noreturn]] inline void fail(SimdLevel level, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", simd_level_name(level), what.c_str());
  std::exit(1);
}

using Bytes = std::vector<uint8_t>;

inline constexpr uint8_t untouched = 77;

// Now and then of extreme levels alone, whose sums overflow.
inline Bytes any_bytes(size_t size) {
  const bool extreme = between(0, 3) == 0;
  Bytes bytes(size);
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>(extreme ? 255 * between(0, 1) : between(0, 255));
  return bytes;
}

// Compares `size` bytes, and that nothing was written behind them and `slack` more.
inline void compare(SimdLevel level, const std::string& name, const Bytes& found,
                    const Bytes& expected, size_t size, size_t slack) {
  const auto end = [size](const Bytes& bytes) {
    return bytes.begin() + static_cast<ptrdiff_t>(size);
  };
  if (!std::equal(found.begin(), end(found), expected.begin())) fail(level, name + " differs");
  const auto behind = end(found) + static_cast<ptrdiff_t>(slack);
  if (std::any_of(behind, found.end(), [](uint8_t byte) { return byte != untouched; }))
    fail(level, name + " writes too far");
}

}  // namespace fusionloader
