#pragma once
// What a fuzzer's bytes are spent on, from the front; zeros when they are used up.
#include <cstddef>
#include <cstdint>

#include "jpeg/scan.hpp"
#include "simd/level.hpp"

namespace fusionloader::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_{data, size} {}

  int byte() {
    if (rest_.size == 0) return 0;
    --rest_.size;
    return *rest_.data++;
  }
  int word() {
    const int high = byte();
    return high << 8 | byte();
  }
  // From 0 up to `end`, without it.
  int below(int end) { return word() % end; }
  ByteView rest() const { return rest_; }

 private:
  ByteView rest_;
};

inline SimdLevel any_level(Input& input) {
  const int best = static_cast<int>(best_simd_level());
  return static_cast<SimdLevel>(input.byte() % (best + 1));
}

inline Rect any_window(Input& input, int width, int height) {
  const int x = input.below(width), y = input.below(height);
  return {x, y, 1 + input.below(width - x), 1 + input.below(height - y)};
}

}  // namespace fusionloader::fuzz
