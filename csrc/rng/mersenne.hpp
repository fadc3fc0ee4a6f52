#pragma once
// Mersenne Twisters (Matsumoto and Nishimura, 1998).
#include <array>
#include <cstddef>
#include <cstdint>

namespace fusionloader {

using MersenneWords = std::array<uint32_t, 624>;

// The next 624 words of a state.
void turn(MersenneWords& words);

// The number that is drawn, of a word of the state.
inline uint32_t temper(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

// States that were just seeded, for several seeds at once. Each word depends on the one before, so
// a processor makes those of many seeds in little more time than those of one.
class SeededWords {
 public:
  static constexpr size_t most = 16;
  // For `count` seeds: `by_number` the states of init_genrand(), as NumPy and torch seed, of the
  // low 32 bits; `by_key` those of init_by_array(), as Python's random seeds, of all 64.
  void fill(const uint64_t* seeds, size_t count, bool by_number, bool by_key);
  const MersenneWords& by_number(size_t place) const { return by_number_[place]; }
  const MersenneWords& by_key(size_t place) const { return by_key_[place]; }

 private:
  std::array<MersenneWords, most> by_number_, by_key_;
};

}  // namespace fusionloader
