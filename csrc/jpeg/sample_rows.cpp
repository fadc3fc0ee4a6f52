// The scalar reference, and the choice of kernels.
#include "jpeg/sample_rows.hpp"

#include <algorithm>

namespace fusionloader {
namespace {

uint8_t to_byte(int value) { return static_cast<uint8_t>(value); }
uint8_t clip(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

void widen(const uint8_t* from, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* at = from + i;
    out[2 * i] = to_byte((3 * at[0] + *(at - 1) + 1) >> 2);
    out[2 * i + 1] = to_byte((3 * at[0] + at[1] + 2) >> 2);
  }
}

void blend(const uint8_t* near, const uint8_t* far, bool far_is_below, size_t count, uint8_t* out) {
  const int bias = far_is_below ? 2 : 1;
  for (size_t i = 0; i < count; ++i) out[i] = to_byte((3 * near[i] + far[i] + bias) >> 2);
}

void blend_and_widen(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out) {
  int before = 3 * *(near - 1) + *(far - 1), here = 3 * near[0] + far[0];
  for (size_t i = 0; i < count; ++i) {
    const int behind = 3 * near[i + 1] + far[i + 1];
    out[2 * i] = to_byte((3 * here + before + 8) >> 4);
    out[2 * i + 1] = to_byte((3 * here + behind + 7) >> 4);
    before = here;
    here = behind;
  }
}

void to_rgbx(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* out) {
  constexpr int half = 1 << 15;
  for (size_t i = 0; i < count; ++i) {
    const int blue = cb[i] - 128, red = cr[i] - 128;
    out[4 * i] = clip(y[i] + red + ((color::red_cr * red + half) >> 16));
    out[4 * i + 1] =
        clip(y[i] - red + ((color::green_cb * blue + color::green_cr * red + half) >> 16));
    out[4 * i + 2] = clip(y[i] + 2 * blue + ((color::blue_cb * blue + half) >> 16));
    out[4 * i + 3] = 255;
  }
}

void grey_to_rgbx(const uint8_t* y, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) out[4 * i] = out[4 * i + 1] = out[4 * i + 2] = y[i];
}

}  // namespace

const SampleKernels scalar_sample_kernels{widen, blend, blend_and_widen, to_rgbx, grey_to_rgbx};

const SampleKernels& sample_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::avx2) return avx2_sample_kernels;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  if (level == SimdLevel::bits128) return sample_kernels_128;
#endif
  (void)level;
  return scalar_sample_kernels;
}

}  // namespace fusionloader
