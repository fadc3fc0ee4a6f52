// The CUDA side of the kernel: its teams are thread blocks, one for each sample. NVRTC compiles it
// on the machine that runs it, without standard headers but the few that Python gives it.
#include "device/block.hpp"
#include "device/body.hpp"

extern "C" __global__ void __launch_bounds__(fusionloader::device::threads_per_block)
    fusionloader_augment(const uint8_t* __restrict__ batch, uint8_t* __restrict__ work) {
  using namespace fusionloader::device;
  __shared__ Scratch scratch;
  Block block(scratch);
  run_sample(block, batch, work, blockIdx.x);
}
