// Entry points that torch.cuda.memory.CUDAPluggableAllocator looks up by name in this library.
#include <sys/types.h>

#include <cstddef>

#include "cuda/arena.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"

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

}  // namespace

Arena& pool_arena() {
  static Arena arena;
  return arena;
}

}  // namespace fusionloader::cuda

extern "C" {

// Null where it does not fit, of which PyTorch makes its OutOfMemoryError.
__attribute__((visibility("default"))) void* fl_pool_malloc(ssize_t bytes, int device,
                                                            void* /*stream*/) {
  if (bytes <= 0) return nullptr;
  const auto found =
      fusionloader::cuda::pool_arena().allocate(static_cast<uint64_t>(bytes), device);
  return found ? reinterpret_cast<void*>(*found) : nullptr;
}

// PyTorch calls it with four arguments, whatever its documentation says.
__attribute__((visibility("default"))) void fl_pool_free(void* address, ssize_t /*bytes*/,
                                                         int device, void* /*stream*/) {
  fusionloader::cuda::wait_for(device);
  fusionloader::cuda::pool_arena().free(reinterpret_cast<uint64_t>(address));
}
}
