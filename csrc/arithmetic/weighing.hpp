#pragma once
// Pillow's fixed point of resizes: weights are multiples of 2^-22, sums are rounded to nearest and
// clipped to 8 bits after each pass.
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader {

constexpr int weight_bits = 22;
constexpr int32_t half_a_level = 1 << (weight_bits - 1);  // what a sum begins with

FUSIONLOADER_BOTH uint8_t rounded_level(int32_t sum) {
  const int32_t level = sum >> weight_bits;
  return static_cast<uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
}

}  // namespace fusionloader
