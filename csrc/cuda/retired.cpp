#include "cuda/retired.hpp"

#include <set>

#include "cuda/driver.hpp"

namespace fusionloader::cuda {

bool Retired::add(uint64_t address) {
  const auto device = arena_.device_of(address);
  if (!device) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.push_back({address, *device});
  return true;
}

void Retired::settle() {
  const std::lock_guard<std::mutex> settling(settling_);
  std::vector<Block> settled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    settled.swap(blocks_);
  }
  try {
    std::set<int> devices;
    for (const Block& block : settled) devices.insert(block.device);
    for (const int device : devices) OnDevice(device).synchronize();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.insert(blocks_.end(), settled.begin(), settled.end());
    throw;
  }
  for (const Block& block : settled) arena_.free(block.address);
}

}  // namespace fusionloader::cuda
