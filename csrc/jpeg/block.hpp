#pragma once
// Where the 64 coefficients of a block lie in memory.
#include <array>
#include <cstddef>
#include <cstdint>

namespace fusionloader {

// Rows r and r + 4 are interleaved, so that vectors of pairs are loaded as multiply-adds need them:
// the inverse transform sums over such pairs.
constexpr size_t coefficient_place(size_t row, size_t column) {
  return row % 4 * 16 + column * 2 + row / 4;
}

constexpr size_t nowhere = 64;

struct alignas(64) Block {
  std::array<int16_t, 64> coefficients;
  std::array<int16_t, 32> unused;  // [0]: coefficients past the last are stored there
};

// Multipliers in the same order.
struct alignas(64) Quantisers {
  std::array<int16_t, 64> values;
};

// From the order of coding to the place in memory; what is past the last is `nowhere`.
struct CodingOrder {
  std::array<uint8_t, 256> places{};

  constexpr CodingOrder() {
    // Diagonals, upwards and downwards by turns.
    size_t index = 0;
    for (size_t diagonal = 0; diagonal < 15; ++diagonal)
      for (size_t step = 0; step <= diagonal; ++step) {
        const size_t other = diagonal - step;
        const size_t row = diagonal % 2 ? step : other, column = diagonal % 2 ? other : step;
        if (row < 8 && column < 8)
          places[index++] = static_cast<uint8_t>(coefficient_place(row, column));
      }
    while (index < places.size()) places[index++] = nowhere;
  }
};

}  // namespace fusionloader
