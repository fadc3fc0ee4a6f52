#pragma once
// A plan as the native side holds it, and drawing its operations for one sample.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "convert/convert_spec.hpp"
#include "plan/operations.hpp"
#include "plan/stages.hpp"
#include "resize/filter.hpp"
#include "rng/philox.hpp"
#include "simd/level.hpp"

namespace fusionloader {

struct PlanSpec {
  std::vector<StageNode> stages;
  std::optional<ConvertSpec> convert;  // none: 8-bit pixels, height x width x channels
  int channels = 3;                    // of the images: 3 (RGB) or 1 (grey)
  int result_channels = 3;             // of the result: 1 also where three were made one
  int height = 0, width = 0;           // of the result; 0 when they differ from image to image
  bool fast_decode = false;
  bool strict = true;  // damage that a crop does not need counts
  // Stages before the image is a tensor in torchvision, and before the last conversion that copies
  // it: colors may depend on how it lies in memory.
  int tensor_from = 0, copied_from = 0;
  size_t deferred_stages = 0;  // at the end: drawn, and left to the reader of the row's tail
  VerticalFirst vertical_first = VerticalFirst::cheaper;  // of which Pillow a resize is
  SimdLevel simd = SimdLevel::scalar;
};

// The operations for one image of `width` x `height` pixels, distributed as torchvision's.
// Throws std::invalid_argument, worded as torchvision's, where torchvision raises ValueError.
// `stage_ends`, if given, becomes for each stage the number of operations drawn up to its end.
Parameters draw(const PlanSpec& plan, const SampleKey& key, int width, int height,
                std::vector<size_t>* stage_ends = nullptr);

}  // namespace fusionloader
