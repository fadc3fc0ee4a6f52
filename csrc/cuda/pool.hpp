#pragma once
// What this process allocates within borrowed blocks; pool.cpp has the entry points for allocators.
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/arena.hpp"

namespace fusionloader::cuda {

// An arena, and what was freed in it while the device may still use it. An allocator in the order
// of streams frees memory when its last use has been launched, not when it has ended. Such memory
// is retired: it stays allocated in the arena until the device was waited for, once for all of it,
// when its room is needed. To retire neither waits nor calls CUDA, so that a host function may do
// it, and the stream may have been destroyed. For any thread.
class Pool {
 public:
  // The process's only one.
  static Pool& get();

  Arena& arena() { return arena_; }
  // Settles where there is no room. Nothing: there is none after that either.
  std::optional<uint64_t> allocate(uint64_t bytes, int device);
  // False when nothing is allocated there.
  bool retire(uint64_t address);
  // Waits for the devices and frees what was retired before. Throws where the driver does; nothing
  // is free then.
  void settle();

 private:
  Arena arena_;
  // Held while the device is waited for: a second thread must not find nothing to settle meanwhile.
  std::mutex settling_;
  // Never held meanwhile: the device may be waiting for a host function that retires something.
  std::mutex mutex_;
  std::vector<std::pair<uint64_t, int>> retired_;  // address and device
};

}  // namespace fusionloader::cuda
