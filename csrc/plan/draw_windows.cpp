// Drawing of windows, sizes and flips: torchvision's get_params.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "ops/limits.hpp"
#include "plan/drawing.hpp"

namespace fusionloader {
namespace {

std::string pair_text(int first, int second) {
  return "(" + std::to_string(first) + ", " + std::to_string(second) + ")";
}

}  // namespace

int round_half_even(double value) {
  if (!(std::fabs(value) < 1 << 30))
    throw std::invalid_argument("a plan's numbers lead to a place or size that is not possible");
  return static_cast<int>(std::nearbyint(value));
}

void Drawing::operator()(const RandomResizedCrop& stage) {
  Stream random = stream();
  crop(random_window(stage, random));
  const auto filters = static_cast<uint32_t>(stage.filters.size());
  const size_t chosen = filters > 1 ? random.below(filters) : 0;
  resize({stage.width, stage.height}, stage.filters[chosen]);
}

void Drawing::operator()(const ResizeShorterSide& stage) {
  const bool upright = size_.width <= size_.height;
  const double shorter = upright ? size_.width : size_.height;
  const double longer = upright ? size_.height : size_.width;
  int new_shorter = stage.size;
  // Truncated as int() does; the product of two sizes is exact in float64.
  double new_longer = std::trunc(stage.size * longer / shorter);
  if (stage.max_size) {
    if (*stage.max_size <= stage.size)
      throw std::invalid_argument("max_size = " + std::to_string(*stage.max_size) +
                                  " must be strictly greater than the requested size for the "
                                  "smaller edge size = " +
                                  std::to_string(stage.size));
    if (new_longer > *stage.max_size) {
      new_shorter =
          static_cast<int>(static_cast<double>(*stage.max_size) * new_shorter / new_longer);
      new_longer = *stage.max_size;
    }
  }
  if (!(new_longer <= longest_side))
    throw std::invalid_argument("an image of " + pair_text(size_.height, size_.width) +
                                " pixels (height, width) would be resized to more than " +
                                std::to_string(longest_side) + " pixels a side");
  const int rounded = static_cast<int>(new_longer);
  resize(upright ? Size{new_shorter, rounded} : Size{rounded, new_shorter}, stage.filter);
}

void Drawing::operator()(const ResizeStage& stage) {
  resize({stage.width, stage.height}, stage.filter);
}

void Drawing::operator()(const CenterCrop& stage) {
  // Where the image is smaller it is padded evenly, the odd pixel at the right or bottom.
  const int pad_x = std::max(stage.width - size_.width, 0);
  const int pad_y = std::max(stage.height - size_.height, 0);
  const auto half = [&](int spare) {
    return stage.truncated ? spare / 2 : round_half_even(spare / 2.0);
  };
  const int x = half(size_.width + pad_x - stage.width) - pad_x / 2;
  const int y = half(size_.height + pad_y - stage.height) - pad_y / 2;
  crop({x, y, stage.width, stage.height, {0, 0, 0}});
}

void Drawing::operator()(const CropOrPad& stage) {
  Stream random = stream();
  const int missing_x = std::max(stage.width - size_.width, 0);
  const int missing_y = std::max(stage.height - size_.height, 0);
  const int spare_x = std::max(size_.width - stage.width, 0);
  const int spare_y = std::max(size_.height - stage.height, 0);
  int left = missing_x / 2, top = missing_y / 2;
  int x = round_half_even(spare_x / 2.0), y = round_half_even(spare_y / 2.0);
  if (stage.random) {
    const auto part = [&](int all) {
      return static_cast<int>(random.below(static_cast<uint32_t>(all) + 1));
    };
    left = part(missing_x), top = part(missing_y);
    x = part(spare_x), y = part(spare_y);
  }
  if (stage.mode == PadMode::constant)
    return crop({x - left, y - top, stage.width, stage.height, stage.fill});
  if (missing_x > 0 || missing_y > 0) {
    const Padding border{left, top, missing_x - left, missing_y - top};
    add(PadBy{border, stage.mode, stage.fill});
  }
  crop({x, y, stage.width, stage.height, {0, 0, 0}});
}

void Drawing::operator()(const TrimBorder& stage) {
  const int width = size_.width - 2 * stage.border, height = size_.height - 2 * stage.border;
  if (width <= 0 || height <= 0)
    throw std::invalid_argument(
        "nothing is left of an image of " + pair_text(size_.height, size_.width) +
        " pixels (height, width) without its border of " + std::to_string(stage.border));
  crop({stage.border, stage.border, width, height, {0, 0, 0}});
}

void Drawing::operator()(const ResizeKeepRatio& stage) {
  Stream random = stream();
  const double by_height = static_cast<double>(size_.height) / stage.height;
  const double by_width = static_cast<double>(size_.width) / stage.width;
  const double ratio = std::max(by_height, by_width) * stage.longest +
                       std::min(by_height, by_width) * (1.0 - stage.longest);
  double factor_y = 1.0, factor_x = 1.0;
  if (stage.scale_probability > 0.0 && random.uniform() < stage.scale_probability) {
    const double drawn = random.uniform(stage.scale[0], stage.scale[1]);
    factor_y = factor_x = stage.scale_is_area ? 1.0 / std::sqrt(drawn) : drawn;
  }
  if (stage.aspect_probability > 0.0 && random.uniform() < stage.aspect_probability) {
    const double drawn = random.uniform(std::log(stage.aspect[0]), std::log(stage.aspect[1]));
    const double stretch = std::sqrt(std::exp(drawn));
    factor_y /= stretch;
    factor_x *= stretch;
  }
  const double height = size_.height * factor_y / ratio, width = size_.width * factor_x / ratio;
  if (!(height <= longest_side && width <= longest_side))
    throw std::invalid_argument("an image of " + pair_text(size_.height, size_.width) +
                                " pixels (height, width) would be resized to more than " +
                                std::to_string(longest_side) + " pixels a side");
  const auto filters = static_cast<uint32_t>(stage.filters.size());
  const size_t chosen = filters > 1 ? random.below(filters) : 0;
  resize({round_half_even(width), round_half_even(height)}, stage.filters[chosen]);
}

void Drawing::operator()(const RandomCrop& stage) {
  int left = stage.left, top = stage.top;
  int width = size_.width + stage.left + stage.right;
  int height = size_.height + stage.top + stage.bottom;
  // Padding on both sides by the whole of what is missing, as torchvision does.
  if (stage.pad_if_needed && width < stage.width) {
    left += stage.width - width;
    width += 2 * (stage.width - width);
  }
  if (stage.pad_if_needed && height < stage.height) {
    top += stage.height - height;
    height += 2 * (stage.height - height);
  }
  if (height < stage.height || width < stage.width)
    throw std::invalid_argument("Required crop size " + pair_text(stage.height, stage.width) +
                                " is larger than input image size " + pair_text(height, width));
  if (width > size_.width || height > size_.height) memory_ = Memory::planar;
  Stream random = stream();
  const int y = static_cast<int>(random.below(static_cast<uint32_t>(height - stage.height) + 1));
  const int x = static_cast<int>(random.below(static_cast<uint32_t>(width - stage.width) + 1));
  crop({x - left, y - top, stage.width, stage.height, stage.fill});
}

void Drawing::operator()(const RandomHorizontalFlip& stage) {
  if (stream().uniform() < stage.probability) add(FlipHorizontally{});
}

void Drawing::operator()(const RandomVerticalFlip& stage) {
  if (stream().uniform() < stage.probability) add(FlipVertically{});
}

void Drawing::crop(const CropTo& window) {
  if (window.width < 1 || window.height < 1)
    throw std::invalid_argument("a crop of " + pair_text(window.height, window.width) +
                                " pixels (height, width) is not possible");
  const bool inside = window.x >= 0 && window.y >= 0 && window.width <= size_.width - window.x &&
                      window.height <= size_.height - window.y;
  if (!inside)
    memory_ = Memory::planar;
  else if (memory_ != Memory::planar && window.height == 1)
    memory_ = Memory::interleaved;
  else if (memory_ == Memory::interleaved && window.width < size_.width)
    memory_ = Memory::window;
  operations_.push_back(window);
  size_ = {window.width, window.height};
}

void Drawing::resize(Size size, Filter filter) {
  if (size.width <= 0 || size.height <= 0)
    throw std::invalid_argument("height and width must be > 0");
  if (size_.width == 1 && size_.height == 1)
    memory_ = Memory::interleaved;
  else if ((memory_ == Memory::window || (is_for_floats(filter) && !on_floats_)) &&
           (size.width != size_.width || size.height != size_.height))
    memory_ = Memory::planar;
  operations_.push_back(ResizeTo{size.width, size.height, filter});
  size_ = size;
}

CropTo Drawing::random_window(const RandomResizedCrop& stage, Stream& random) const {
  const double area = static_cast<double>(size_.width) * size_.height;
  const double log_low = std::log(stage.ratio[0]), log_high = std::log(stage.ratio[1]);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target_area = area * random.uniform(stage.scale[0], stage.scale[1]);
    const double ratio = std::exp(random.uniform(log_low, log_high));
    const double exact_width = std::sqrt(target_area * ratio);
    const double exact_height = std::sqrt(target_area / ratio);
    if (!(exact_width < 2.0 * longest_side && exact_height < 2.0 * longest_side)) continue;
    const int width = round_half_even(exact_width), height = round_half_even(exact_height);
    if (width <= 0 || width > size_.width || height <= 0 || height > size_.height) continue;
    const int y = static_cast<int>(random.below(static_cast<uint32_t>(size_.height - height) + 1));
    const int x = static_cast<int>(random.below(static_cast<uint32_t>(size_.width - width) + 1));
    return {x, y, width, height, {0, 0, 0}};
  }
  const double in_ratio = static_cast<double>(size_.width) / size_.height;
  const auto [low, high] = std::minmax(stage.ratio[0], stage.ratio[1]);
  int width = size_.width, height = size_.height;
  if (in_ratio < low) height = round_half_even(width / low);
  if (in_ratio > high) width = round_half_even(height * high);
  // floor division, as Python's //
  const auto centre = [](int outer, int inner) { return (outer - inner) >> 1; };
  return {centre(size_.width, width), centre(size_.height, height), width, height, {0, 0, 0}};
}

}  // namespace fusionloader
