// The CUDA side of batches that come as levels: a column of blocks for each row. NVRTC compiles it,
// as it does kernel.cu.
#include "device/levels_to_elements.hpp"

extern "C" __global__ void fusionloader_convert_levels(fusionloader::device::LevelRows rows) {
  fusionloader::device::convert_row(rows, blockIdx.y, blockIdx.x * blockDim.x + threadIdx.x,
                                    gridDim.x * blockDim.x);
}
