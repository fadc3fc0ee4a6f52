#include "ops/color.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ops/blend.hpp"
#include "ops/histogram.hpp"
#include "ops/lookup.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

template <int>
FUSIONLOADER_INLINE void bits_loop(uint8_t* levels, size_t count, uint8_t keep, uint8_t flip) {
  for (size_t i = 0; i < count; ++i) levels[i] = static_cast<uint8_t>((levels[i] & keep) ^ flip);
}

template <int>
FUSIONLOADER_INLINE void invert_loop(uint8_t* levels, size_t count, uint8_t from) {
  for (size_t i = 0; i < count; ++i)
    levels[i] = static_cast<uint8_t>(levels[i] ^ (levels[i] >= from ? 255 : 0));
}

template <int>
FUSIONLOADER_INLINE void add_loop(uint8_t* levels, size_t count, uint8_t add, uint8_t below) {
  for (size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<uint8_t>(levels[i] + add);
    const uint8_t capped = sum < add ? 255 : sum;
    levels[i] = levels[i] < below ? capped : levels[i];
  }
}

FUSIONLOADER_PER_LEVEL(change_bits, bits_loop)
FUSIONLOADER_PER_LEVEL(invert_from, invert_loop)
FUSIONLOADER_PER_LEVEL(add_below, add_loop)

template <class Work>
void for_each_plane(Planes& image, Work work) {
  for (int channel = 0; channel < image.channels(); ++channel)
    work(image.plane(channel), image.padded_size());
}

// Torch adds the mean times a number to 16 elements at a time. Of those left over, as they lie in
// memory, it rounds that product before the sum for all but the first and the last up to 3: their
// loop was compiled that way.
class UnfusedEnd {
 public:
  UnfusedEnd(Planes& image, float mean, const Blending& by) {
    if (by.way != Blending::Way::fused) return;
    const auto channels = static_cast<size_t>(image.channels());
    const size_t elements = image.size() * channels, left = elements % 16;
    if (left == 0) return;
    count_ = (left - 1) / 4 * 4;
    for (size_t i = 0; i < count_; ++i) {
      const size_t element = elements - left + 1 + i;
      const bool interleaved = by.rounding == Rounding::torch_v2_interleaved;
      const size_t channel = interleaved ? element % channels : element / image.size();
      const size_t pixel = interleaved ? element / channels : element % image.size();
      at_[i] = image.plane(static_cast<int>(channel)) + pixel;
      levels_[i] = blend_rounded(mean, *at_[i], by.factor, by.rest);
    }
  }
  void store() const {
    for (size_t i = 0; i < count_; ++i) *at_[i] = levels_[i];
  }

 private:
  size_t count_ = 0;
  uint8_t* at_[12];
  uint8_t levels_[12];
};

// The first level that is not below the threshold, 256 if there is none.
int first_level_from(double threshold) {
  if (!(threshold > 0.0)) return 0;
  return threshold > 255.0 ? 256 : static_cast<int>(std::ceil(threshold));
}

}  // namespace

int whole_number(double value) {
  if (!(std::fabs(value) <= 1e6))
    throw std::invalid_argument("a color operation's number is out of range");
  return static_cast<int>(value);
}

void adjust_brightness(Planes& image, double factor, SimdLevel level) {
  look_up(image, blend_table(0.0f, Blending(factor), level), level);
}

void adjust_contrast(Planes& image, double factor, Rounding rounding, SimdLevel level) {
  if (image.size() == 0) return;
  const float mean = mean_of_grey(image, rounding, level);
  const Blending by(factor, rounding);
  const UnfusedEnd end(image, mean, by);
  look_up(image, blend_table(mean, by, level), level);
  end.store();
}

void adjust_saturation(Planes& image, double factor, Rounding rounding, SimdLevel level) {
  if (image.channels() == 3) blend_from_grey(image, Blending(factor, rounding), level);
}

void adjust_sharpness(Planes& image, double factor, Rounding rounding, ColorScratch& scratch,
                      SimdLevel level) {
  blend_from_smooth(image, Blending(factor, rounding, true), scratch.rows, level);
}

void posterize(Planes& image, int bits, SimdLevel level) {
  const auto mask = static_cast<uint8_t>(0xFF00 >> std::clamp(bits, 0, 8));
  for_each_plane(image, [&](uint8_t* plane, size_t count) {
    change_bits(level, plane, count, mask, uint8_t{0});
  });
}

void solarize(Planes& image, double threshold, SimdLevel level) {
  const int first = first_level_from(threshold);
  if (first > 255) return;
  for_each_plane(image, [&](uint8_t* plane, size_t count) {
    invert_from(level, plane, count, static_cast<uint8_t>(first));
  });
}

void solarize_add(Planes& image, int add, double threshold, SimdLevel level) {
  const int first = first_level_from(threshold);
  if (add < 0 || add > 255 || first > 255) {
    LevelTable table;
    for (int i = 0; i < 256; ++i)
      table[static_cast<size_t>(i)] =
          static_cast<uint8_t>(i < first ? std::clamp(i + add, 0, 255) : i);
    return look_up(image, table, level);
  }
  for_each_plane(image, [&](uint8_t* plane, size_t count) {
    add_below(level, plane, count, static_cast<uint8_t>(add), static_cast<uint8_t>(first));
  });
}

void invert(Planes& image, SimdLevel level) {
  for_each_plane(image, [&](uint8_t* plane, size_t count) {
    change_bits(level, plane, count, uint8_t{255}, uint8_t{255});
  });
}

void autocontrast(Planes& image, Rounding rounding, SimdLevel level) {
  for (int channel = 0; channel < image.channels(); ++channel) {
    uint8_t* plane = image.plane(channel);
    const LevelRange range = range_of_levels(plane, image.size(), level);
    if (range.most > range.least)
      look_up(plane, image.size(), stretching_table(range, rounding), level);
  }
}

void equalize(Planes& image, SimdLevel level) {
  for (int channel = 0; channel < image.channels(); ++channel) {
    uint8_t* plane = image.plane(channel);
    LevelTable table;
    if (equalizing_table(histogram(plane, image.size()), table))
      look_up(plane, image.size(), table, level);
  }
}

void to_grayscale(Planes& image, int channels, Rounding rounding, SimdLevel level) {
  if (image.channels() == 3) red_to_grey(image, rounding, level);
  image.set_channels(channels);
  for (int channel = 1; channel < channels; ++channel)
    std::memcpy(image.plane(channel), image.plane(0), image.size());
}

void select_channels(const Planes& in, Planes& out, const std::array<uint8_t, 3>& channels) {
  out.reset(in.channels(), in.width(), in.height());
  for (int channel = 0; channel < out.channels(); ++channel) {
    const int from = in.channels() == 1 ? 0 : channels[static_cast<size_t>(channel)];
    std::memcpy(out.plane(channel), in.plane(from), in.size());
  }
}

void erase(Planes& image, const Rectangle& where, const uint8_t (&values)[3]) {
  const int left = std::max(where.x, 0), top = std::max(where.y, 0);
  const auto end = [](int begin, int length, int most) {
    return static_cast<int>(std::min<int64_t>(int64_t{begin} + length, most));
  };
  const int right = end(where.x, where.width, image.width());
  const int bottom = end(where.y, where.height, image.height());
  if (right <= left) return;
  for (int channel = 0; channel < image.channels(); ++channel)
    for (int y = top; y < bottom; ++y)
      std::memset(image.plane(channel) +
                      static_cast<size_t>(y) * static_cast<size_t>(image.width()) +
                      static_cast<size_t>(left),
                  values[channel], static_cast<size_t>(right - left));
}

}  // namespace fusionloader
