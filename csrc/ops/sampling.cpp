// The scalar reference, and the choice of kernels.
#include "ops/sampling.hpp"

#include "ops/sampling_loops.hpp"

namespace fusionloader {
namespace {

void split_scalar(const uint32_t* row, size_t width, int channels, uint8_t* const* planes) {
  for (int channel = 0; channel < channels; ++channel)
    for (size_t x = 0; x < width; ++x)
      planes[channel][x] = static_cast<uint8_t>(row[x] >> 8 * channel);
}

void fixed_scalar(const PackedImage& image, FixedLine line, size_t count, uint32_t fill,
                  uint32_t* out) {
  for (size_t i = 0; i < count; ++i, line.x += line.step_x, line.y += line.step_y)
    out[i] = nearest_fixed(image, line.x, line.y, fill);
}

void nearest_scalar(const PackedImage& image, const double* xs, const double* ys, size_t count,
                    uint32_t fill, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = nearest(image, xs[i], ys[i], fill);
}

template <int size>
void filter_scalar(const PackedImage& image, const double* xs, const double* ys, size_t count,
                   uint32_t fill, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = filtered_or<size>(image, xs[i], ys[i], fill);
}

}  // namespace

const SamplingKernels scalar_sampling{pack_loop,        split_scalar,    affine_loop,
                                      perspective_loop, fixed_scalar,    nearest_scalar,
                                      filter_scalar<2>, filter_scalar<4>};

const SamplingKernels& sampling_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::avx512) return avx512_sampling;
  if (level == SimdLevel::avx2) return avx2_sampling;
#endif
  (void)level;
  return scalar_sampling;
}

}  // namespace fusionloader
