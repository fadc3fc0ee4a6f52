// The CUDA side: the kernel's teams are thread blocks, one for each sample.
#include "device/augment.hpp"

#include <cuda_runtime.h>

#include <new>

#include "device/body.hpp"

namespace {

using namespace fusionloader::device;

// As many as a block can have: a launch may have fewer samples than the device has processors. They
// leave 64 registers to each.
constexpr int threads = 1024;

class Block {
 public:
  __device__ explicit Block(Scratch& scratch) : scratch_(scratch) {}
  __device__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ int lanes() const { return threads; }
  __device__ void sync() const { __syncthreads(); }
  __device__ Scratch& scratch() const { return scratch_; }
  __device__ void add(uint32_t& counter, uint32_t value) const { atomicAdd(&counter, value); }
  __device__ void add(uint64_t& counter, uint64_t value) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(&counter), value);
  }

 private:
  Scratch& scratch_;
};

__global__ void __launch_bounds__(threads)
    augment(const uint8_t* __restrict__ batch, uint8_t* __restrict__ work) {
  __shared__ Scratch scratch;
  Block block(scratch);
  run_sample(block, batch, work, blockIdx.x);
}

// Memory that only grows.
struct Grown {
  void* memory = nullptr;
  size_t bytes = 0;
};

cudaError_t reserve_device(Grown& grown, size_t bytes) {
  if (bytes <= grown.bytes) return cudaSuccess;
  if (const cudaError_t error = cudaFree(grown.memory)) return error;
  grown = {};
  const size_t more = bytes + bytes / 4;
  if (const cudaError_t error = cudaMalloc(&grown.memory, more)) {
    cudaGetLastError();  // or the next launch would report it again
    return error;
  }
  grown.bytes = more;
  return cudaSuccess;
}

cudaError_t reserve_pinned(Grown& grown, size_t bytes) {
  if (bytes <= grown.bytes) return cudaSuccess;
  if (const cudaError_t error = cudaFreeHost(grown.memory)) return error;
  grown = {};
  const size_t more = bytes + bytes / 4;
  if (const cudaError_t error = cudaMallocHost(&grown.memory, more)) return error;
  grown.bytes = more;
  return cudaSuccess;
}

// Makes another device current than the caller's, until destruction.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error = cudaGetDevice(&before_);
    if (error == cudaSuccess) error = cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  cudaError_t error;

 private:
  int before_ = 0;
};

}  // namespace

struct fl_augmenter {
  static constexpr int slots = 4;

  struct Slot {
    Grown staging, program;
    cudaEvent_t done = nullptr;
  };
  int device = 0, next = 0;
  size_t bytes = 0;  // of the batch that is being written
  Slot slot[slots];
  Grown work;
  cudaEvent_t last = nullptr;  // of the slot launched last, which may still use `work`
};

extern "C" {

const char* fl_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

int fl_device_count(int* count) { return cudaGetDeviceCount(count); }

int fl_augmenter_create(int device, fl_augmenter** made) {
  const OnDevice on(device);
  if (on.error) return on.error;
  auto* augmenter = new (std::nothrow) fl_augmenter;
  if (!augmenter) return cudaErrorMemoryAllocation;
  augmenter->device = device;
  for (auto& slot : augmenter->slot)
    if (const cudaError_t error = cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming)) {
      fl_augmenter_destroy(augmenter);
      return error;
    }
  *made = augmenter;
  return cudaSuccess;
}

void fl_augmenter_destroy(fl_augmenter* augmenter) {
  if (!augmenter) return;
  {
    const OnDevice on(augmenter->device);
    for (auto& slot : augmenter->slot) {
      if (slot.done) {
        cudaEventSynchronize(slot.done);
        cudaEventDestroy(slot.done);
      }
      cudaFreeHost(slot.staging.memory);
      cudaFree(slot.program.memory);
    }
    cudaFree(augmenter->work.memory);
  }
  delete augmenter;
}

int fl_augment_begin(fl_augmenter* augmenter, size_t bytes, void** program) {
  const OnDevice on(augmenter->device);
  if (on.error) return on.error;
  auto& slot = augmenter->slot[augmenter->next];
  if (const cudaError_t error = cudaEventSynchronize(slot.done)) return error;
  if (const cudaError_t error = reserve_pinned(slot.staging, bytes)) return error;
  if (const cudaError_t error = reserve_device(slot.program, bytes)) return error;
  augmenter->bytes = bytes;
  *program = slot.staging.memory;
  return cudaSuccess;
}

int fl_augment_launch(fl_augmenter* augmenter, int samples, void* work, size_t work_bytes,
                      void* given) {
  const OnDevice on(augmenter->device);
  if (on.error) return on.error;
  if (samples < 1) return cudaErrorInvalidValue;
  const auto stream = static_cast<cudaStream_t>(given);
  auto& slot = augmenter->slot[augmenter->next];
  if (!work) {
    // Launches share the working memory: whatever their streams, one runs after the other.
    if (augmenter->last) {
      if (const cudaError_t error = cudaStreamWaitEvent(stream, augmenter->last, 0)) return error;
      if (work_bytes > augmenter->work.bytes)
        if (const cudaError_t error = cudaEventSynchronize(augmenter->last)) return error;
    }
    if (const cudaError_t error = reserve_device(augmenter->work, work_bytes)) return error;
    work = augmenter->work.memory;
  }
  if (const cudaError_t error = cudaMemcpyAsync(slot.program.memory, slot.staging.memory,
                                                augmenter->bytes, cudaMemcpyHostToDevice, stream))
    return error;
  augment<<<static_cast<unsigned>(samples), threads, 0, stream>>>(
      static_cast<const uint8_t*>(slot.program.memory), static_cast<uint8_t*>(work));
  if (const cudaError_t error = cudaGetLastError()) return error;
  if (const cudaError_t error = cudaEventRecord(slot.done, stream)) return error;
  augmenter->last = slot.done;
  augmenter->next = (augmenter->next + 1) % fl_augmenter::slots;
  return cudaSuccess;
}

int fl_allocate(size_t bytes, void** made) { return cudaMalloc(made, bytes); }
int fl_free(void* memory) { return cudaFree(memory); }
int fl_copy(void* to, const void* from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
int fl_synchronize(void) { return cudaDeviceSynchronize(); }
}
