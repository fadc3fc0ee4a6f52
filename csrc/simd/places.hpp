#pragma once
// Orders of byte shuffles that bring three channels side by side.
#include <cstdint>

namespace fusionloader {

// Where in each of three pieces of 16 bytes of RGB the 16 levels of a channel go.
struct Places {
  alignas(16) int8_t piece[3][16];
};

constexpr Places places_of(int channel) {
  Places places{};
  for (int piece = 0; piece < 3; ++piece)
    for (int i = 0; i < 16; ++i) {
      const int byte = 16 * piece + i;
      places.piece[piece][i] = static_cast<int8_t>(byte % 3 == channel ? byte / 3 : -1);
    }
  return places;
}

inline constexpr Places places_of_three[] = {places_of(0), places_of(1), places_of(2)};

}  // namespace fusionloader
