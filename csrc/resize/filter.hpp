#pragma once
#include <cstdint>

namespace fusionloader {
enum class Filter : uint8_t { box, bilinear, hamming, bicubic, lanczos };
}  // namespace fusionloader
