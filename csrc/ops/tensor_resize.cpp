#include "ops/tensor_resize.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

// The two elements that each element of an axis comes from, and their weights.
struct Axis {
  std::vector<int32_t> first, second;
  std::vector<float> first_weights, second_weights;

  Axis(size_t in, size_t out) {
    const float scale = static_cast<float>(in) / static_cast<float>(out);
    const auto last = static_cast<int32_t>(in) - 1;
    const int32_t beside = in == out ? 0 : 1;  // a copy has nothing of its neighbours
    for (size_t i = 0; i < out; ++i) {
      const float place = std::fma(scale, static_cast<float>(i) + 0.5f, -0.5f);
      const float from = std::max(place, 0.0f);
      const int32_t whole = std::min(static_cast<int32_t>(from), last);
      const float rest = std::clamp(from - static_cast<float>(whole), 0.0f, 1.0f);
      first.push_back(whole);
      second.push_back(std::min(whole + beside, last));
      first_weights.push_back(1.0f - rest);
      second_weights.push_back(rest);
    }
  }
};

template <int>
FUSIONLOADER_INLINE void row_loop(const float* above, const float* below, float above_weight,
                                  float below_weight, const Axis* across, float* __restrict out) {
  const size_t count = across->first.size();
  const int32_t *left = across->first.data(), *right = across->second.data();
  const float* left_weights = across->first_weights.data();
  const float* right_weights = across->second_weights.data();
  for (size_t x = 0; x < count; ++x) {
    const float at_left = left_weights[x], at_right = right_weights[x];
    float sum = above[right[x]] * (above_weight * at_right);
    sum = __builtin_fmaf(above[left[x]], above_weight * at_left, sum);
    sum = __builtin_fmaf(below[left[x]], below_weight * at_left, sum);
    out[x] = __builtin_fmaf(below[right[x]], below_weight * at_right, sum);
  }
}

FUSIONLOADER_PER_LEVEL(interpolate_row, row_loop)

}  // namespace

void interpolate_planes(const float* in, size_t channels, size_t width, size_t height, float* out,
                        size_t out_width, size_t out_height, SimdLevel level) {
  if (width == out_width && height == out_height) {
    std::copy_n(in, channels * width * height, out);
    return;
  }
  const Axis across(width, out_width), down(height, out_height);
  for (size_t channel = 0; channel < channels; ++channel, in += width * height)
    for (size_t y = 0; y < out_height; ++y, out += out_width)
      interpolate_row(level, in + static_cast<size_t>(down.first[y]) * width,
                      in + static_cast<size_t>(down.second[y]) * width, down.first_weights[y],
                      down.second_weights[y], &across, out);
}

}  // namespace fusionloader
