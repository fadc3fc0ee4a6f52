#pragma once
// What runs a sample: a team of lanes that share scratch memory. On CUDA it is a thread block; on
// the host one lane, or several of which one runs at a time. A team gives
//
//   int lane(), lanes()       this lane's number, and how many there are
//   void sync()               waits for all lanes; every lane calls it equally often
//   Scratch& scratch()        memory that all lanes see
//   void add(counter, value)  adds to a counter in scratch, for lanes at the same time
#include <cstdint>

#include "arithmetic/both.hpp"

namespace fusionloader::device {

struct Scratch {
  // Lanes that count at the same time use different copies. Copies begin in different memory banks,
  // so that lanes which count the same level do not wait for each other.
  static constexpr int copies = 8, copy_stride = 3 * 256 + 1;

  union {
    uint32_t counts[copies * copy_stride];
    alignas(8) uint8_t elements[3 * 256 * 8];
  };
  uint8_t tables[3][256];
  uint64_t sum;
  uint32_t step[3];
  int least[3], most[3];
};

// The places of an image shared out between lanes: neighbours to neighbours.
template <class Team, class Work>
FUSIONLOADER_BOTH void each_place(const Team& team, int width, int height, const Work& work) {
  const auto row = static_cast<uint32_t>(width), count = row * static_cast<uint32_t>(height);
  for (auto i = static_cast<uint32_t>(team.lane()); i < count;
       i += static_cast<uint32_t>(team.lanes()))
    work(static_cast<int>(i % row), static_cast<int>(i / row), i);
}

template <class Team, class Work>
FUSIONLOADER_BOTH void each(const Team& team, int count, const Work& work) {
  for (int i = team.lane(); i < count; i += team.lanes()) work(i);
}

}  // namespace fusionloader::device
