#pragma once
// What the programs that try vector kernels share.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

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

}  // namespace fusionloader
