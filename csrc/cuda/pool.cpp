// Entry points that allocators look up by name in this library: torch's CUDAPluggableAllocator, and
// the memory resource for DALI (fusionloader/executors/dali/memory/memory_resource.cpp).
#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "cuda/arena.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "cuda/retired.hpp"

namespace fusionloader::cuda {
namespace {

// What was launched on the memory may not be done yet; as cudaFree does, wait for the device.
void wait_for(int device) {
  try {
    OnDevice(device).synchronize();
  } catch (const Error&) {
    // The device is lost, and nothing will use the memory again.
  }
}

std::optional<uint64_t> allocate(uint64_t bytes, int device) {
  const auto found = pool_arena().allocate(bytes, device);
  if (found) return found;
  try {
    pool_retired().settle();
  } catch (const Error&) {
    return std::nullopt;
  }
  return pool_arena().allocate(bytes, device);
}

}  // namespace

// Never destroyed, both: the libraries that allocate here free what they hold when the process
// ends, in an order of their own.
Arena& pool_arena() {
  static Arena& arena = *std::make_unique<Arena>().release();
  return arena;
}

Retired& pool_retired() {
  static Retired& retired = *std::make_unique<Retired>(pool_arena()).release();
  return retired;
}

}  // namespace fusionloader::cuda

extern "C" {

// Null where it does not fit, of which PyTorch makes its OutOfMemoryError.
__attribute__((visibility("default"))) void* fl_pool_malloc(ssize_t bytes, int device,
                                                            void* /*stream*/) {
  if (bytes <= 0) return nullptr;
  const auto found = fusionloader::cuda::allocate(static_cast<uint64_t>(bytes), device);
  return found ? reinterpret_cast<void*>(*found) : nullptr;
}

// PyTorch calls it with four arguments, whatever its documentation says.
__attribute__((visibility("default"))) void fl_pool_free(void* address, ssize_t /*bytes*/,
                                                         int device, void* /*stream*/) {
  fusionloader::cuda::wait_for(device);
  fusionloader::cuda::pool_arena().free(reinterpret_cast<uint64_t>(address));
}

// For what is freed in the order of a stream: false where it is not of this memory, and whoever
// asks has to free it elsewhere.
__attribute__((visibility("default"))) bool fl_pool_retire(void* address) {
  return fusionloader::cuda::pool_retired().add(reinterpret_cast<uint64_t>(address));
}
}
