#pragma once
// What was freed in an arena while the device may be at work in it still.
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/arena.hpp"

namespace fusionloader::cuda {

// An allocator in the order of streams frees memory when its last use has been launched, not when
// it has ended. Such memory stays allocated in the arena until the device was waited for. That is
// done once for all of it, when its room is needed: whoever frees neither waits nor says a word to
// CUDA, so that it may be a host function, and one whose stream is gone by then. For any thread.
class Retired {
 public:
  explicit Retired(Arena& arena) : arena_(arena) {}
  // False when nothing is allocated there.
  bool add(uint64_t address);
  // Waits for the devices and frees what was retired before. Throws where the driver does; nothing
  // is free then.
  void settle();

 private:
  struct Block {
    uint64_t address;
    int device;
  };
  Arena& arena_;
  // Held while the device is waited for, so that no other thread believes that there is nothing.
  std::mutex settling_;
  // Never held meanwhile: the device may be waiting for a host function that retires something.
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// Of the arena that fl_pool_malloc allocates from, see pool.cpp.
Retired& pool_retired();

}  // namespace fusionloader::cuda
