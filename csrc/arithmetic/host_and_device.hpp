#pragma once
// What is compiled for the processor and for CUDA devices alike, from one source.
//
// Everything here is whole numbers, or IEEE arithmetic whose every step is rounded as written: the
// compilers are told not to contract products and sums (-ffp-contract=off, -fmad=false).
#if defined(__CUDACC__)
#define FUSIONLOADER_BOTH __host__ __device__ inline __attribute__((always_inline))
#else
#define FUSIONLOADER_BOTH inline __attribute__((always_inline))
#endif

namespace fusionloader {

template <class Value>
FUSIONLOADER_BOTH Value clamped(Value value, Value least, Value most) {
  return value < least ? least : most < value ? most : value;
}

}  // namespace fusionloader
