// Gaussian blur: rows, then columns, in float32, on a ring of as many rows as the kernel covers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "arithmetic/borders.hpp"
#include "ops/blur_kernels.hpp"
#include "ops/color.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

constexpr int most_reach = HalfKernel::most_reach;
constexpr size_t vectors_at_once = 4, block = 64;  // values: as many as 4 vectors of 16

template <int lanes>
struct Vector {
  typedef float type __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
};

// Where the values begin that lie 0, 1, 2, ... steps before and after those to be weighed.
struct Taps {
  const float* before[most_reach + 1];
  const float* after[most_reach + 1];
};

template <int lanes>
FUSIONLOADER_INLINE void weigh_loop(const Taps* taps, const HalfKernel* kernel, float* out,
                                    size_t count) {
  using Floats = typename Vector<lanes>::type;
  for (size_t x = 0; x < count; x += vectors_at_once * lanes) {
    Floats sums[vectors_at_once];
    for (size_t i = 0; i < vectors_at_once; ++i)
      sums[i] =
          *reinterpret_cast<const Floats*>(taps->before[0] + x + i * lanes) * kernel->weights[0];
    for (int step = 1; step <= kernel->reach; ++step) {
      const float *before = taps->before[step] + x, *after = taps->after[step] + x;
      const float weight = kernel->weights[step];
      for (size_t i = 0; i < vectors_at_once; ++i)
        sums[i] += (*reinterpret_cast<const Floats*>(before + i * lanes) +
                    *reinterpret_cast<const Floats*>(after + i * lanes)) *
                   weight;
    }
    for (size_t i = 0; i < vectors_at_once; ++i)
      *reinterpret_cast<Floats*>(out + x + i * lanes) = sums[i];
  }
}

template <int>
FUSIONLOADER_INLINE void to_float_loop(const uint8_t* levels, float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = levels[i];
}

template <int>
FUSIONLOADER_INLINE void to_levels_loop(const float* values, uint8_t* __restrict out,
                                        size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = rounded_level(values[i]);
}

FUSIONLOADER_PER_LEVEL(weigh, weigh_loop)
FUSIONLOADER_PER_LEVEL(to_float, to_float_loop)
FUSIONLOADER_PER_LEVEL(to_levels, to_levels_loop)

class Blur {
 public:
  Blur(const Planes& image, const HalfKernel& across, const HalfKernel& down,
       std::vector<float>& floats, SimdLevel level)
      : width_(image.width()),
        height_(image.height()),
        across_(across),
        down_(down),
        level_(level),
        padded_((static_cast<size_t>(width_) + block - 1) / block * block),
        slots_(2 * down.reach + 1) {
    const size_t margins = 2 * static_cast<size_t>(across.reach) + block;
    const size_t needed = padded_ * static_cast<size_t>(slots_ + 1) + padded_ + margins;
    if (floats.size() < needed) floats.resize(needed);
    ring_ = floats.data();
    result_ = ring_ + padded_ * static_cast<size_t>(slots_);
    row_ = result_ + padded_ + across.reach;
    for (int step = 0; step <= across.reach; ++step) {
      in_row_.before[step] = row_ - step;
      in_row_.after[step] = row_ + step;
    }
  }

  void run(uint8_t* plane) {
    int filtered = 0;
    Taps taps;
    for (int y = 0; y < height_; ++y) {
      for (; filtered < height_ && filtered <= y + down_.reach; ++filtered)
        filter_row(row_of(plane, filtered), slot(filtered));
      for (int step = 0; step <= down_.reach; ++step) {
        taps.before[step] = slot(reflected(y - step, height_));
        taps.after[step] = slot(reflected(y + step, height_));
      }
      weigh(level_, static_cast<const Taps*>(&taps), &down_, result_, padded_);
      to_levels(level_, static_cast<const float*>(result_), row_of(plane, y),
                static_cast<size_t>(width_));
    }
  }

 private:
  uint8_t* row_of(uint8_t* plane, int y) const {
    return plane + static_cast<size_t>(y) * static_cast<size_t>(width_);
  }
  float* slot(int y) const { return ring_ + padded_ * static_cast<size_t>(y % slots_); }

  void filter_row(const uint8_t* levels, float* out) {
    to_float(level_, levels, row_, static_cast<size_t>(width_));
    for (int step = 1; step <= across_.reach; ++step) {
      row_[-step] = row_[step];
      row_[width_ - 1 + step] = row_[width_ - 1 - step];
    }
    weigh(level_, static_cast<const Taps*>(&in_row_), &across_, out, padded_);
  }

  int width_, height_;
  const HalfKernel &across_, &down_;
  SimdLevel level_;
  size_t padded_;
  int slots_;
  float *ring_, *result_, *row_;
  Taps in_row_;
};

}  // namespace

HalfKernel half_kernel(int size, double sigma) {
  if (size < 1 || size % 2 == 0 || size / 2 > most_reach)
    throw std::invalid_argument("a blur's kernel size must be odd and at most 513");
  if (!(static_cast<float>(sigma) > 0.0f))
    throw std::invalid_argument("a blur's sigma must be positive");
  HalfKernel kernel{size / 2, {}};
  float sum = 0.0f;
  for (int i = 0; i <= kernel.reach; ++i) {
    const float steps = static_cast<float>(i) / static_cast<float>(sigma);
    kernel.weights[i] = std::exp(-0.5f * (steps * steps));
    sum += i == 0 ? kernel.weights[i] : 2.0f * kernel.weights[i];
  }
  for (int i = 0; i <= kernel.reach; ++i) kernel.weights[i] /= sum;
  // Weights this small are lost in the rounding errors of the sum anyway.
  while (kernel.reach > 0 && kernel.weights[kernel.reach] < 1e-8f) --kernel.reach;
  return kernel;
}

void require_room_for_kernels(int kernel_width, int kernel_height, int width, int height) {
  if (kernel_width / 2 >= width || kernel_height / 2 >= height)
    throw std::invalid_argument("a blur's kernel must be smaller than twice the image");
}

void gaussian_blur(Planes& image, int kernel_width, int kernel_height, double sigma_x,
                   double sigma_y, ColorScratch& scratch, SimdLevel level) {
  const HalfKernel across = half_kernel(kernel_width, sigma_x);
  const HalfKernel down = half_kernel(kernel_height, sigma_y);
  require_room_for_kernels(kernel_width, kernel_height, image.width(), image.height());
  Blur blur(image, across, down, scratch.floats, level);
  for (int channel = 0; channel < image.channels(); ++channel) blur.run(image.plane(channel));
}

}  // namespace fusionloader
