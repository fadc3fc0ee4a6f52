// The CUDA side of rows with programs: a thread block for each row. NVRTC compiles it, as it does
// kernel.cu.
#include "device/block.hpp"
#include "device/program_rows.hpp"

extern "C" __global__ void __launch_bounds__(fusionloader::device::threads_per_block)
    fusionloader_augment_rows(fusionloader::device::ProgramRows rows) {
  using namespace fusionloader::device;
  __shared__ Scratch scratch;
  Block block(scratch);
  augment_row(block, rows, blockIdx.x);
}
