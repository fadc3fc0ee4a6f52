#pragma once
// Allocating within ranges of memory that are there for a while: the first place that fits.
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace fusionloader::cuda {

constexpr uint64_t kArenaAlign = 512;  // what cudaMalloc gives, and PyTorch relies on

// Only numbers: the memory itself is never touched. For any thread.
class Arena {
 public:
  // Throws where the range overlaps one that is there, or has no room at all.
  void add(uint64_t address, uint64_t bytes, int device);
  // Throws while something in the range is allocated.
  void remove(uint64_t address);
  // A frozen range gives nothing any more; what was allocated stays.
  void freeze(uint64_t address, bool frozen);
  std::optional<uint64_t> allocate(uint64_t bytes, int device);
  // False when nothing is allocated there.
  bool free(uint64_t address);
  // Of what is allocated there; nothing where nothing is.
  std::optional<int> device_of(uint64_t address);
  bool is_empty();  // whether there are no ranges
  uint64_t live_bytes();
  uint64_t live_bytes(uint64_t address);  // in the range that begins there

 private:
  struct Range {
    uint64_t bytes;
    int device;
    uint64_t live;
    bool frozen;
    std::map<uint64_t, uint64_t> holes;  // bytes by address
  };
  using Ranges = std::map<uint64_t, Range>;
  Ranges::iterator require(uint64_t address);
  Ranges::iterator containing(uint64_t address);

  std::mutex mutex_;
  Ranges ranges_;
  std::map<uint64_t, uint64_t> live_;  // bytes by address
};

}  // namespace fusionloader::cuda
