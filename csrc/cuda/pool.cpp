#include "cuda/pool.hpp"

#include <sys/types.h>

#include <memory>
#include <set>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace fusionloader::cuda {

// Never destroyed: the libraries that allocate here free what they hold when the process ends, in
// an order of their own.
Pool& Pool::get() {
  static Pool& pool = *std::make_unique<Pool>().release();
  return pool;
}

std::optional<uint64_t> Pool::allocate(uint64_t bytes, int device) {
  const auto found = arena_.allocate(bytes, device);
  if (found) return found;
  try {
    settle();
  } catch (const Error&) {
    return std::nullopt;
  }
  return arena_.allocate(bytes, device);
}

bool Pool::retire(uint64_t address) {
  const auto device = arena_.device_of(address);
  if (!device) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  retired_.emplace_back(address, *device);
  return true;
}

void Pool::settle() {
  const std::lock_guard<std::mutex> settling(settling_);
  std::vector<std::pair<uint64_t, int>> settled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    settled.swap(retired_);
  }
  try {
    std::set<int> devices;
    for (const auto& [address, device] : settled) devices.insert(device);
    for (const int device : devices) OnDevice(device).synchronize();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired_.insert(retired_.end(), settled.begin(), settled.end());
    throw;
  }
  for (const auto& [address, device] : settled) arena_.free(address);
}

}  // namespace fusionloader::cuda

// Entry points that allocators look up by name in this library: torch's CUDAPluggableAllocator, and
// the memory resource for DALI (fusionloader/transforms/executors/dali/memory/memory_resource.cpp).
extern "C" {

// Null where it does not fit, of which PyTorch makes its OutOfMemoryError.
__attribute__((visibility("default"))) void* fl_pool_malloc(ssize_t bytes, int device,
                                                            void* /*stream*/) {
  using fusionloader::cuda::Pool;
  if (bytes <= 0) return nullptr;
  const auto found = Pool::get().allocate(static_cast<uint64_t>(bytes), device);
  return found ? reinterpret_cast<void*>(*found) : nullptr;
}

// PyTorch calls it with four arguments, whatever its documentation says. As cudaFree does, it waits
// for the device: what was launched on the memory may not be done yet.
__attribute__((visibility("default"))) void fl_pool_free(void* address, ssize_t /*bytes*/,
                                                         int device, void* /*stream*/) {
  using namespace fusionloader::cuda;
  try {
    OnDevice(device).synchronize();
  } catch (const Error&) {
    // The device is lost, and nothing will use the memory again.
  }
  Pool::get().arena().free(reinterpret_cast<uint64_t>(address));
}

// For what is freed in the order of a stream: false where it is not of this memory, and the caller
// has to free it elsewhere.
__attribute__((visibility("default"))) bool fl_pool_retire(void* address) {
  return fusionloader::cuda::Pool::get().retire(reinterpret_cast<uint64_t>(address));
}
}
