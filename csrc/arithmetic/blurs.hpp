#pragma once
// Weights and roundings of the two blurs.
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

// One side of a symmetric kernel: the weight at the centre, then 1, 2, ... steps from it.
struct HalfKernel {
  static constexpr int most_reach = 256;

  int reach;
  float weights[most_reach + 1];
};

// The sum of what `at(-reach) ... at(reach)` give, weighed, from the centre outwards.
template <class At>
FUSIONLOADER_BOTH auto weighed(const float* weights, int reach, const At& at) {
  auto sum = at(0) * weights[0];
  for (int step = 1; step <= reach; ++step) sum = sum + (at(-step) + at(step)) * weights[step];
  return sum;
}

// Rounds halves to even, as torch.round: above 2^23 floats have no fraction.
FUSIONLOADER_BOTH uint8_t rounded_level(float value) {
  constexpr float no_fraction = 8388608.0f;
  return static_cast<uint8_t>(static_cast<int>((value + no_fraction) - no_fraction));
}

// A box of 2 radius + 1 values of weight `whole` with one of weight `edge` at either end; weights
// in 8.24 fixed point.
struct Box {
  static constexpr int passes = 3;

  int radius;
  uint32_t whole, edge;
};

// From the sum of the values of full weight and that of the two at the ends.
FUSIONLOADER_BOTH uint8_t boxed_level(const Box& box, uint32_t sum, uint32_t edges) {
  return static_cast<uint8_t>((sum * box.whole + edges * box.edge + (1u << 23)) >> 24);
}

}  // namespace fusionloader
