// The CUDA side of the kernel: its teams are thread blocks, one for each sample. NVRTC compiles it
// on the machine that runs it, without standard headers but the few that Python gives it.
#include "device/body.hpp"

namespace {

using namespace fusionloader::device;

class Block {
 public:
  __device__ explicit Block(Scratch& scratch) : scratch_(scratch) {}
  __device__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ int lanes() const { return threads_per_block; }
  __device__ void sync() const { __syncthreads(); }
  __device__ Scratch& scratch() const { return scratch_; }
  __device__ void add(uint32_t& counter, uint32_t value) const { atomicAdd(&counter, value); }
  __device__ void add(uint64_t& counter, uint64_t value) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(&counter), value);
  }

 private:
  Scratch& scratch_;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(threads_per_block)
    fusionloader_augment(const uint8_t* __restrict__ batch, uint8_t* __restrict__ work) {
  __shared__ Scratch scratch;
  Block block(scratch);
  run_sample(block, batch, work, blockIdx.x);
}
