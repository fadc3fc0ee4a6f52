#pragma once
// Counter-based random numbers: what a sample draws depends on its key alone, whoever draws it.
#include <array>
#include <cstdint>

namespace fusionloader {

// What identifies a sample's random draws, whoever makes them. `occurrence` counts from 0 how often
// the index has already come up in this epoch: repeated indices get draws of their own. Samples of
// one `group`, where that is not 0, share the draws of their augmentations.
struct SampleKey {
  uint64_t seed;
  uint64_t epoch;
  uint64_t index;
  uint64_t occurrence;
  uint64_t group = 0;

  SampleKey shared() const {
    // No sample comes up that often, so that a group's draws are no sample's.
    return group == 0 ? *this : SampleKey{seed, epoch, group, UINT32_MAX};
  }
};

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011).
inline PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint64_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
  constexpr uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = multiplier_0 * counter[0];
    const uint64_t product_1 = multiplier_1 * counter[2];
    counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product_1),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product_0)};
    key = {key[0] + weyl_0, key[1] + weyl_1};
  }
  return counter;
}

// The draws of one stage for one sample.
//
// Layout. The Philox key is words 0 and 1 of the block at counter (epoch low, epoch high, 0, 0)
// under the key (seed low, seed high). The counter is (index low, index high, occurrence mod 2^32,
// stage << 20 | block): 4096 stages of 2^20 blocks of four words each. A stage's draws therefore do
// not depend on which stages stand before it, nor on how many numbers they took.
class Stream {
 public:
  Stream(const SampleKey& key, uint32_t stage)
      : counter_{low(key.index), high(key.index), low(key.occurrence), stage << 20} {
    const PhiloxCounter mixed =
        philox4x32({low(key.epoch), high(key.epoch), 0, 0}, {low(key.seed), high(key.seed)});
    key_ = {mixed[0], mixed[1]};
  }

  uint32_t next_u32() {
    if (used_ == block_.size()) {
      block_ = philox4x32(counter_, key_);
      ++counter_[3];
      used_ = 0;
    }
    return block_[used_++];
  }

  // In [0, 1), a multiple of 2^-53.
  double uniform() {
    const uint64_t upper = next_u32() >> 5, lower = next_u32() >> 6;
    return static_cast<double>(upper << 26 | lower) * 0x1.0p-53;
  }

  // In [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // In [0, bound), every value equally likely; bound > 0. The part of the 32-bit range that would
  // favour some values is drawn again.
  uint32_t below(uint32_t bound) {
    const uint32_t unfair = (0u - bound) % bound;
    uint64_t scaled;
    do {
      scaled = static_cast<uint64_t>(next_u32()) * bound;
    } while (static_cast<uint32_t>(scaled) < unfair);
    return static_cast<uint32_t>(scaled >> 32);
  }

 private:
  static uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
  static uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

  PhiloxCounter counter_;
  PhiloxKey key_;
  PhiloxCounter block_{};
  size_t used_ = 4;
};

}  // namespace fusionloader
