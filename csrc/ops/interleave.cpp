// The scalar reference, and the choice of kernels.
#include "ops/interleave.hpp"

#include <cstring>

namespace fusionloader {
namespace {

template <size_t bytes>
void join(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t width,
          uint8_t* out) {
  for (size_t x = 0; x < width; ++x) {
    out[bytes * x] = red[x];
    out[bytes * x + 1] = green[x];
    out[bytes * x + 2] = blue[x];
  }
}

template <size_t first>
void pack(const uint8_t* row, size_t width, uint8_t* out) {
  for (size_t x = 0; x < width; ++x) {
    out[3 * x + first] = row[4 * x];
    out[3 * x + 1] = row[4 * x + 1];
    out[3 * x + 2 - first] = row[4 * x + 2];
  }
}

void spread_rgb(const uint8_t* row, size_t width, uint8_t* out) {
  for (size_t x = 0; x < width; ++x)
    for (size_t channel = 0; channel < 3; ++channel) out[4 * x + channel] = row[3 * x + channel];
}

void mirror(const uint8_t* row, size_t width, uint8_t* out) {
  for (size_t x = 0; x < width; ++x) std::memcpy(out + 4 * x, row + 4 * (width - 1 - x), 4);
}

}  // namespace

const InterleaveKernels scalar_interleave{join<3>, join<4>, pack<0>, pack<2>, spread_rgb, mirror};

const InterleaveKernels& interleave_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::avx2) return avx2_interleave;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (level == SimdLevel::bits128) return interleave_128;
#endif
  (void)level;
  return scalar_interleave;
}

}  // namespace fusionloader
