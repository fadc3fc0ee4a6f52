#pragma once
// torch's generator for the CPU as it lies in memory: ATen/core/MT19937RNGEngine.h with
// ATen/CPUGeneratorImpl.h.
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include "rng/mersenne.hpp"

namespace fusionloader {

struct TorchEngine {
  uint64_t seed;
  int32_t left;
  bool is_seeded;
  uint32_t next;
  MersenneWords words;
};
struct TorchTwister {
  TorchEngine engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

// The numbers that torch's functions draw from it. The caller holds the GIL: torch's own lock is
// not taken.
class TorchRandom {
 public:
  explicit TorchRandom(TorchEngine& engine) : engine_(engine) {}

  // torch.empty(1).uniform_(low, high), whose kernel rounds once.
  double uniform(double low, double high) {
    const auto from = static_cast<float>(low), to = static_cast<float>(high);
    const float part = static_cast<float>(next() & 0xffffff) * 0x1p-24f;
    return std::fma(part, to - from, from);
  }
  // torch.randint(0, bound, (1,)), for a bound of less than 2^28.
  int below(int bound) { return static_cast<int>(next() % static_cast<uint32_t>(bound)); }
  // torch.randperm(count).
  template <size_t count>
  std::array<size_t, count> permutation() {
    std::array<size_t, count> order;
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + next() % (count - i)]);
    return order;
  }

 private:
  uint32_t next() {
    // Never beyond the words, even if another thread has drawn at the same moment.
    if (--engine_.left <= 0 || engine_.next >= engine_.words.size()) {
      turn(engine_.words);
      engine_.left = static_cast<int32_t>(engine_.words.size());
      engine_.next = 0;
    }
    return temper(engine_.words[engine_.next++]);
  }

  TorchEngine& engine_;
};

}  // namespace fusionloader
