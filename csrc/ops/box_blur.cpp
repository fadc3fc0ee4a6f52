// Pillow's Gaussian blur: three box blurs of a radius with a fraction, in 8.24 fixed point.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ops/blur_kernels.hpp"
#include "ops/color.hpp"

namespace fusionloader {
namespace {

constexpr int passes = Box::passes;

// Gwosdek et al., "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering"
// (2011); float32 where Pillow has float32.
float box_radius(float sigma) {
  const float variance = sigma * sigma / passes;
  const auto length = static_cast<float>(std::sqrt(12.0 * variance + 1.0));
  const auto whole = static_cast<float>(std::floor((length - 1.0) / 2.0));
  float rest = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  rest /= 6 * (variance - (whole + 1) * (whole + 1));
  return whole + rest;
}

Box box_of(float radius) {
  constexpr uint32_t one = 1u << 24;
  Box box{static_cast<int>(radius), 0, 0};
  box.whole = static_cast<uint32_t>(static_cast<float>(one) / (radius * 2 + 1));
  box.edge = (one - static_cast<uint32_t>(box.radius * 2 + 1) * box.whole) / 2;
  return box;
}

// `count` lines side by side, value i of a line `across` bytes from value i - 1 and the lines one
// byte apart; `sums` has room for `count`, `copy` for all the lines. Beyond its ends a line
// goes on with its outermost values.
void blur_lines(uint8_t* lines, int length, size_t across, size_t count, const Box& box,
                uint32_t* sums, uint8_t* copy) {
  for (int i = 0; i < length; ++i)
    std::memcpy(copy + static_cast<size_t>(i) * count, lines + static_cast<size_t>(i) * across,
                count);
  const auto at = [&](int64_t i) {
    return copy + static_cast<size_t>(std::clamp<int64_t>(i, 0, length - 1)) * count;
  };
  const int64_t radius = box.radius;
  std::fill(sums, sums + count, 0u);
  const auto add_times = [&](const uint8_t* values, uint32_t times) {
    for (size_t k = 0; k < count; ++k) sums[k] += values[k] * times;
  };
  // The box around -1.
  const int64_t inside = std::min<int64_t>(radius, length);
  add_times(at(0), static_cast<uint32_t>(radius + 1));
  for (int64_t i = 0; i < inside; ++i) add_times(at(i), 1);
  add_times(at(length), static_cast<uint32_t>(radius - inside));
  for (int64_t i = 0; i < length; ++i) {
    const uint8_t *left = at(i - radius - 1), *last = at(i + radius), *right = at(i + radius + 1);
    uint8_t* out = lines + static_cast<size_t>(i) * across;
    for (size_t k = 0; k < count; ++k) {
      sums[k] += static_cast<uint32_t>(last[k]) - left[k];
      const uint32_t edges = static_cast<uint32_t>(left[k]) + right[k];
      out[k] = boxed_level(box, sums[k], edges);
    }
  }
}

void transpose(const uint8_t* in, int width, int height, uint8_t* out) {
  constexpr int tile = 16;
  const auto w = static_cast<size_t>(width), h = static_cast<size_t>(height);
  for (int top = 0; top < height; top += tile)
    for (int left = 0; left < width; left += tile)
      for (int y = top; y < std::min(top + tile, height); ++y)
        for (int x = left; x < std::min(left + tile, width); ++x)
          out[static_cast<size_t>(x) * h + static_cast<size_t>(y)] =
              in[static_cast<size_t>(y) * w + static_cast<size_t>(x)];
}

}  // namespace

bool box_for_radius(double radius, Box& box) {
  if (!(radius >= 0.0 && radius <= 1e4))
    throw std::invalid_argument("a blur's radius must be from 0 to 10000");
  const float of_box = box_radius(static_cast<float>(radius));
  if (of_box == 0.0f) return false;
  box = box_of(of_box);
  return true;
}

void box_gaussian_blur(Planes& image, double radius, ColorScratch& scratch) {
  Box box;
  if (!box_for_radius(radius, box) || image.size() == 0) return;
  // A strip of this many lines stays in the cache.
  constexpr size_t strip = 256;
  const auto width = static_cast<size_t>(image.width());
  const auto height = static_cast<size_t>(image.height());
  uint32_t sums[strip];
  std::vector<uint8_t>& rows = scratch.rows;
  // An image of fewer lines than a strip has is copied whole, not more than that.
  const size_t copied = std::max(std::min(strip, height) * width, std::min(strip, width) * height);
  if (rows.size() < image.size() + copied) rows.resize(image.size() + copied);
  uint8_t *turned = rows.data(), *copy = turned + image.size();
  for (int channel = 0; channel < image.channels(); ++channel) {
    uint8_t* plane = image.plane(channel);
    transpose(plane, image.width(), image.height(), turned);
    for (size_t first = 0; first < height; first += strip)
      for (int pass = 0; pass < passes; ++pass)
        blur_lines(turned + first, image.width(), height, std::min(strip, height - first), box,
                   sums, copy);
    transpose(turned, image.height(), image.width(), plane);
    for (size_t first = 0; first < width; first += strip)
      for (int pass = 0; pass < passes; ++pass)
        blur_lines(plane + first, image.height(), width, std::min(strip, width - first), box, sums,
                   copy);
  }
}

}  // namespace fusionloader
