#pragma once
// Normally distributed numbers from a stream of uniform ones.
#include <cmath>

#include "rng/philox.hpp"

namespace fusionloader {

// Box and Muller, "A note on the generation of random normal deviates" (1958).
inline double normal(Stream& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return radius * std::cos(2.0 * M_PI * random.uniform());
}

// Many of them, in float32: both of what Box and Muller's method makes of two words.
class NormalNoise {
 public:
  explicit NormalNoise(const Stream& random) : random_(random) {}

  float next() {
    spare_ready_ = !spare_ready_;
    if (!spare_ready_) return spare_;
    // In (0, 1], so that the logarithm is finite.
    const float radius = std::sqrt(-2.0f * std::log(unit(random_.next_u32()) + 0x1p-33f));
    const float angle = static_cast<float>(2.0 * M_PI) * unit(random_.next_u32());
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

 private:
  static float unit(uint32_t word) { return static_cast<float>(word) * 0x1p-32f; }

  Stream random_;
  float spare_ = 0.0f;
  bool spare_ready_ = false;
};

}  // namespace fusionloader
