#pragma once
// Which vector instructions the kernels may use.
#include <stdexcept>
#include <string>

namespace fusionloader {

enum class SimdLevel : int { scalar = 0, avx2 = 1, avx512 = 2 };

inline SimdLevel best_simd_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return avx512 ? SimdLevel::avx512 : avx2 ? SimdLevel::avx2 : SimdLevel::scalar;
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
    default:
      return "scalar";
  }
}

// Throws std::invalid_argument for an unknown name or a level this processor lacks.
inline SimdLevel simd_level_from_name(const std::string& name) {
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    if (name != simd_level_name(level)) continue;
    if (level > best_simd_level())
      throw std::invalid_argument("this processor has no " + name + "; it has up to " +
                                  simd_level_name(best_simd_level()));
    return level;
  }
  throw std::invalid_argument("SIMD level must be scalar, avx2 or avx512, not " + name);
}

}  // namespace fusionloader
