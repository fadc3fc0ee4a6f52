#pragma once
// Which vector instructions the kernels may use.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace fusionloader {

// bits128 is SSE4.1 on x86, NEON on 64-bit Arm. What has no kernel for it takes the scalar one.
enum class SimdLevel : int { scalar = 0, bits128 = 1, avx2 = 2, avx512 = 3 };

inline SimdLevel widest_simd_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool sse4 = __builtin_cpu_supports("sse4.1");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? SimdLevel::avx512
         : avx2 ? SimdLevel::avx2
         : sse4 ? SimdLevel::bits128
                : SimdLevel::scalar;
#elif defined(__aarch64__)
  return SimdLevel::bits128;
#else
  return SimdLevel::scalar;
#endif
}

inline const char* simd_level_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::avx512:
      return "avx512";
    case SimdLevel::avx2:
      return "avx2";
    case SimdLevel::bits128:
#if defined(__aarch64__)
      return "neon";
#else
      return "sse4";
#endif
    default:
      return "scalar";
  }
}

// Those that this processor has, the widest last.
inline std::vector<SimdLevel> simd_levels() {
  std::vector<SimdLevel> levels;
  for (int level = 0; level <= static_cast<int>(widest_simd_level()); ++level)
    levels.push_back(static_cast<SimdLevel>(level));
  return levels;
}

// Throws std::invalid_argument for a level that this processor lacks, or nobody knows.
inline SimdLevel simd_level_from_name(const std::string& name) {
  std::string names;
  for (const SimdLevel level : simd_levels()) {
    if (name == simd_level_name(level)) return level;
    names += (names.empty() ? "" : " or ") + std::string(simd_level_name(level));
  }
  throw std::invalid_argument("SIMD level must be " + names + " on this processor, not " + name);
}

// The widest of this processor, or what FUSIONLOADER_SIMD names.
inline SimdLevel best_simd_level() {
  static const SimdLevel level = [] {
    const char* name = std::getenv("FUSIONLOADER_SIMD");
    return name == nullptr ? widest_simd_level() : simd_level_from_name(name);
  }();
  return level;
}

}  // namespace fusionloader
