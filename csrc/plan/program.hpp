#pragma once
// A plan as the native side holds it, and the concrete operations drawn from it for one sample.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "resize/filter.hpp"
#include "rng/philox.hpp"
#include "simd/level.hpp"

namespace fusionloader {

using Colour = std::array<uint8_t, 3>;  // red, green, blue

// The stages of fusionloader/plan/stages.py; sizes in pixels.
struct RandomResizedCrop {
  int height, width;
  std::array<double, 2> scale, ratio;
  Filter filter;
};
struct ResizeShorterSide {
  int size;
  std::optional<int> max_size;
  Filter filter;
};
struct ResizeStage {
  int height, width;
  Filter filter;
};
struct CenterCrop {
  int height, width;
};
struct RandomCrop {
  int height, width;
  int left, top, right, bottom;
  bool pad_if_needed;
  Colour fill;
};
struct RandomHorizontalFlip {
  double probability;
};
struct RandomVerticalFlip {
  double probability;
};
using Stage = std::variant<RandomResizedCrop, ResizeShorterSide, ResizeStage, CenterCrop,
                           RandomCrop, RandomHorizontalFlip, RandomVerticalFlip>;

enum class Layout { chw, hwc };

// Every level of every channel mapped through `table`: channels x 256 elements of `element_size`
// bytes.
struct ConvertSpec {
  size_t element_size;
  bool is_float32;
  Layout layout;
  std::vector<uint8_t> table;
};

struct PlanSpec {
  std::vector<Stage> stages;
  std::optional<ConvertSpec> convert;  // none: 8-bit pixels, height x width x channels
  int channels = 3;                    // of the images and of the result: 3 (RGB) or 1 (grey)
  int height = 0, width = 0;           // of the result; 0 when they differ from image to image
  bool fast_decode = false;
  // Pillow 13 runs the vertical pass of a resize first where that is cheaper; older ones never do.
  bool vertical_first_allowed = true;
  SimdLevel simd = SimdLevel::scalar;
};

// A window of the image; what lies outside the image is `fill`.
struct CropTo {
  int x, y, width, height;
  Colour fill;
};
struct ResizeTo {
  int width, height;
  Filter filter;
};
struct FlipHorizontally {};
struct FlipVertically {};
using Operation = std::variant<CropTo, ResizeTo, FlipHorizontally, FlipVertically>;
using Parameters = std::vector<Operation>;

// The operations for one image of `width` x `height` pixels, distributed as torchvision's.
// Throws std::invalid_argument, worded as torchvision's, where torchvision raises ValueError.
Parameters draw(const PlanSpec& plan, const SampleKey& key, int width, int height);

}  // namespace fusionloader
