#pragma once
// The stages of fusionloader/transforms/plan/stages.py: operations with distributions for
// parameters. Sizes in pixels, angles in degrees.
#include <array>
#include <optional>
#include <variant>
#include <vector>

#include "plan/operations.hpp"

namespace fusionloader {

using Range = std::array<double, 2>;

struct RandomResizedCrop {
  int height, width;
  Range scale, ratio;
  std::vector<Filter> filters;  // one of them, equally likely
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
  bool truncated;  // an odd pixel more is at the right or bottom; else half to even
};
// The middle or a random window of the image, on a border of `mode` where the image is smaller;
// then the image too is in the middle of the border or anywhere.
struct CropOrPad {
  int height, width;
  bool random;
  PadMode mode;
  Color fill;
};
// All but `border` pixels on every side.
struct TrimBorder {
  int border;
};
// timm's: the image divided by a ratio that lies between those of the sides to height x width, at
// `longest` = 0 the smaller of the two. Sometimes scaled and stretched further.
struct ResizeKeepRatio {
  int height, width;
  double longest;
  double scale_probability, aspect_probability;
  Range scale, aspect;
  bool scale_is_area;           // then more than 1 makes the image smaller
  std::vector<Filter> filters;  // one of them, equally likely
};
struct RandomCrop {
  int height, width;
  int left, top, right, bottom;
  bool pad_if_needed;
  Color fill;
};
struct RandomHorizontalFlip {
  double probability;
};
struct RandomVerticalFlip {
  double probability;
};

// The factors that are there, in random order.
struct ColorJitter {
  std::optional<Range> brightness, contrast, saturation, hue;
  Rounding rounding;
};
struct GaussianBlur {
  int kernel_width, kernel_height;
  Range sigma;
  Rounding rounding;
};
struct RandomRotation {
  Range degrees;
  Interpolation interpolation;
  bool expand;
  std::optional<Point> centre;
  Color fill;
  Rounding rounding;
};
struct RandomAffine {
  Range degrees;
  std::optional<Range> translate;  // largest part of width and height
  std::optional<Range> scale, shear_x, shear_y;
  Interpolation interpolation;
  std::optional<Point> centre;
  Color fill;
  Rounding rounding;
};
struct RandomPerspective {
  double distortion;
  Interpolation interpolation;
  Color fill;
  Rounding rounding;
};
// Always the same operation: those without random parameters.
struct Fixed {
  Operation operation;
};

// What a step of a policy does with its magnitude.
enum class PolicyOp {
  identity,
  // torchvision's: shears about the corner by atan(magnitude), whole pixels of translation.
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  // The plain matrices of timm and of the AutoAugment paper's code.
  skew_x,
  skew_y,
  shift_x,
  shift_y,
  rotate,
  brightness,
  contrast,
  saturation,
  sharpness,
  posterize,
  solarize,
  solarize_add,
  invert,
  autocontrast,
  equalize,
  cutout,  // a square of magnitude x the shorter side, its centre anywhere
  hflip,
  box_blur,        // the magnitude is the radius
  box_blur_up_to,  // radius between 0.1 and twice the magnitude
};

// A level is drawn, then: offset + scale x level, truncated to an integer before the offset is
// added where `truncate`; the level is negated half of the time where `either_sign`. The result is
// clipped to `bounds`.
struct Magnitude {
  enum class Source {
    listed,   // one of `levels`
    normal,   // `levels` are mean and deviation
    uniform,  // between the two `levels`
  };
  // `width`, `height`: the result is times that side; with `bins`, `levels` are places in
  // torch.linspace(0, scale x that side, bins).
  enum class RelativeTo { nothing, width, height };

  Source source;
  std::vector<double> levels;
  Range clip;
  double scale, offset;
  bool truncate, either_sign;
  RelativeTo relative_to;
  int bins;
  Range bounds;
};

struct PolicyStep {
  PolicyOp op;
  double probability;
  Magnitude magnitude;
};

// `repeats` times: one of `policies`, by `weights` if there are any, of which each step is done
// with its probability. Every time another one where `distinct`.
struct RandomPolicy {
  std::vector<std::vector<PolicyStep>> policies;
  int repeats;
  std::vector<Interpolation> interpolations;  // one of them, equally likely
  Color fill;
  std::vector<double> weights;
  bool distinct;
  Rounding rounding, warp_rounding;
};

// Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and
// Uncertainty" (2020): chains of `operations`, 1 to 3 long where `depth` is not positive.
struct AugMix {
  RandomPolicy operations;
  int width, depth;
  double alpha;
  Mixing mixing;
};

// After the conversion. Zhong et al., "Random Erasing Data Augmentation" (2020); `values` and noise
// as in EraseResult.
struct RandomErasing {
  double probability;
  Range scale, ratio;
  std::vector<uint8_t> values;
  bool noise_per_pixel;
  int least_boxes, most_boxes;
};

struct StageNode;
struct RandomApply {
  double probability;
  std::vector<StageNode> stages;
};
struct RandomChoice {
  std::vector<std::vector<StageNode>> branches;
  std::vector<double> weights;
};
struct RandomOrder {
  std::vector<std::vector<StageNode>> branches;
};

using Stage =
    std::variant<RandomResizedCrop, ResizeShorterSide, ResizeStage, ResizeKeepRatio, CenterCrop,
                 CropOrPad, TrimBorder, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip,
                 ColorJitter, GaussianBlur, RandomRotation, RandomAffine, RandomPerspective, Fixed,
                 RandomPolicy, AugMix, RandomErasing, RandomApply, RandomChoice, RandomOrder>;

// `number` says which random numbers a stage gets: unique in its plan, whatever branch is taken.
struct StageNode {
  Stage stage;
  unsigned number;
};

}  // namespace fusionloader
