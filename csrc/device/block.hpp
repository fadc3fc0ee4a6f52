#pragma once
// The team of a CUDA device: a thread block, for one sample.
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

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

}  // namespace fusionloader::device
