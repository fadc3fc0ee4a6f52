#pragma once
// Where the wall time of a compiled plan goes, part by part.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "queue/parts.hpp"

namespace fusionloader {

struct PartTimes {
  std::array<uint64_t, kParts> ns{};
  std::vector<size_t> stage_ends;  // as draw() gives them; empty for operations given from outside

  Part part_of(size_t operation) const {
    if (stage_ends.empty()) return Part::passes;
    const auto after = std::upper_bound(stage_ends.begin(), stage_ends.end(), operation);
    const auto stage = static_cast<size_t>(after - stage_ends.begin());
    return static_cast<Part>(std::min(static_cast<size_t>(Part::first_stage) + stage, kParts - 1));
  }

  // Adds what was counted to a worker's record, and starts again from 0.
  void move_to(std::atomic<uint64_t> (&record)[kParts]) {
    for (size_t i = 0; i < kParts; ++i)
      if (ns[i]) {
        record[i].fetch_add(ns[i], std::memory_order_relaxed);
        ns[i] = 0;
      }
  }

  // What was counted; starts anew.
  std::array<uint64_t, kParts> take() { return std::exchange(ns, {}); }

  class Timed {
   public:
    Timed(PartTimes& times, Part part) : ns_(times.ns[static_cast<size_t>(part)]) {}
    ~Timed() {
      const auto passed = std::chrono::steady_clock::now() - start_;
      ns_ += static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    uint64_t& ns_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };
};

}  // namespace fusionloader
