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

// Behind them: what no coefficient belongs to, and what data that no encoder writes gives.
constexpr uint8_t nowhere = 64, too_far = 65;

struct alignas(64) Block {
  std::array<int16_t, 64> coefficients;
  std::array<int16_t, 32> unused;  // of which two are nowhere and too_far
};

// Multipliers in the same order.
struct alignas(64) Quantisers {
  std::array<int16_t, 64> values;
};

// How far the reading of a block has come, in the order of coding. Each symbol moves on by 1 to 16
// coefficients or, if it ends the block, by `end_of_block`; a code that has to be asked for by
// `unknown_code`. Two symbols are added before anybody looks, or a run of which all but the last
// stay below the last coefficient, and still the sum tells what has happened:
//   1 to 63     coefficients, the 63rd being the last;
//   64 to 94    too many of them;
//   112 to 174  the end, and 176 to 190 after too many;
//   192 to 254  a code that has to be asked for.
constexpr unsigned last_coefficient = 63;
constexpr unsigned end_of_block = 112, unknown_code = 192;

// From there to the place in memory.
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
    for (; index < places.size(); ++index) {
      const bool ended = index >= end_of_block && index <= end_of_block + last_coefficient;
      places[index] = ended || index >= unknown_code ? nowhere : too_far;
    }
  }
};

}  // namespace fusionloader
