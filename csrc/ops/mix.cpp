#include "ops/mix.hpp"

#include <algorithm>

#include "ops/blend.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

template <int>
FUSIONLOADER_INLINE void first_loop(const uint8_t* levels, float weight, float* __restrict sums,
                                    size_t count) {
  for (size_t i = 0; i < count; ++i) sums[i] = weight * static_cast<float>(levels[i]);
}

template <int>
FUSIONLOADER_INLINE void add_loop(const uint8_t* levels, float weight, float* __restrict sums,
                                  size_t count) {
  for (size_t i = 0; i < count; ++i) sums[i] += weight * static_cast<float>(levels[i]);
}

template <int>
FUSIONLOADER_INLINE void truncate_loop(const float* sums, uint8_t* __restrict levels,
                                       size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float positive = sums[i] > 0.0f ? sums[i] : 0.0f;
    const float within = positive < 255.0f ? positive : 255.0f;
    levels[i] = static_cast<uint8_t>(static_cast<int>(within));
  }
}

FUSIONLOADER_PER_LEVEL(make_sums, first_loop)
FUSIONLOADER_PER_LEVEL(add_to_sums, add_loop)
FUSIONLOADER_PER_LEVEL(truncate_sums, truncate_loop)

}  // namespace

void WeightedSum::start(const Planes& image) {
  const size_t needed = static_cast<size_t>(image.channels()) * image.padded_size();
  if (sums_.size() < needed) sums_.resize(needed);
  empty_ = true;
}

void WeightedSum::add(const Planes& image, float weight, SimdLevel level) {
  float* sums = sums_.data();
  const size_t count = image.padded_size();
  for (int channel = 0; channel < image.channels(); ++channel, sums += count) {
    if (empty_)
      make_sums(level, image.plane(channel), weight, sums, count);
    else
      add_to_sums(level, image.plane(channel), weight, sums, count);
  }
  empty_ = false;
}

void WeightedSum::store(Planes& image, SimdLevel level) {
  const float* sums = sums_.data();
  const size_t count = image.padded_size();
  for (int channel = 0; channel < image.channels(); ++channel, sums += count) {
    if (empty_)
      std::fill_n(image.plane(channel), count, uint8_t{0});
    else
      truncate_sums(level, sums, image.plane(channel), count);
  }
}

void blend_over(Planes& image, const Planes& other, double weight, SimdLevel level) {
  const Blending by(weight);
  for (int channel = 0; channel < image.channels(); ++channel)
    blend_levels(level, image.plane(channel), other.plane(channel), image.plane(channel),
                 image.size(), by);
}

}  // namespace fusionloader
