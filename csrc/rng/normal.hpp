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

}  // namespace fusionloader
