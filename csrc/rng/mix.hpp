#pragma once
#include <cstdint>

namespace fusionloader {

// A bijection of 64-bit words that spreads every bit (the finalizer of SplitMix64).
inline uint64_t mix_word(uint64_t word) {
  word += 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// A seed for the generators of Python code, of what identifies a sample's draws. It has 63 bits:
// user code may store torch.initial_seed() in a tensor of int64.
inline uint64_t mix_key(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t occurrence) {
  return mix_word(seed ^ mix_word(epoch ^ mix_word(index ^ mix_word(occurrence)))) >> 1;
}

}  // namespace fusionloader
