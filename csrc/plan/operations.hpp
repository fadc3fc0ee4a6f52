#pragma once
// What is done to one image, with every parameter decided: what is drawn from a plan's stages.
#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "ops/geometry.hpp"
#include "ops/rounding.hpp"
#include "resize/filter.hpp"

namespace fusionloader {

// A window of the image; what lies outside the image is `fill`.
struct CropTo {
  int x, y, width, height;
  Color fill;
};
// The whole image, or a box inside it of at least a pixel each way. Of levels, torch's filters for
// floats give floats that are rounded to levels again.
struct ResizeTo {
  int width, height;
  Filter filter;
  std::optional<SourceBox> box = std::nullopt;
};
// Pillow's Image.reduce: `columns` x `rows` pixels to one, fewer at the right and at the bottom.
struct ReduceBy {
  int columns, rows;
};
struct FlipHorizontally {};
struct FlipVertically {};

// torchvision.transforms.functional's operation of that name with `value` as its argument: adjust_*
// factors, bits of posterize, threshold of solarize; solarize_add's threshold is 128.
enum class ColorKind {
  brightness,
  contrast,
  saturation,
  hue,
  sharpness,
  posterize,
  solarize,
  solarize_add,
  invert,
  autocontrast,
  equalize,
  grayscale,
};
struct ColorTo {
  ColorKind kind;
  double value;
  Rounding rounding = Rounding::pillow;
};

// Whether torchvision's functions for uint8 tensors give other levels than those for Pillow images.
constexpr bool rounds_on_tensors(ColorKind kind) {
  return kind == ColorKind::contrast || kind == ColorKind::saturation || kind == ColorKind::hue ||
         kind == ColorKind::sharpness || kind == ColorKind::autocontrast ||
         kind == ColorKind::grayscale;
}

// Pillow's Image.point: what becomes of each of 256 levels, for all channels or one after the
// other.
struct LookUp {
  std::vector<uint8_t> tables;
};

// Which channel of the image each of the result's is.
struct SelectChannels {
  std::array<uint8_t, 3> channels;
};

// Kernel sizes are odd, sigmas in pixels. Separable, but on tensors: there torch_v1 stands for v2's
// blur where torch's vectors have 8 floats, torch_v2 for 16.
struct BlurWith {
  int kernel_width, kernel_height;
  double sigma_x, sigma_y;
  Rounding rounding = Rounding::pillow;

  int lanes() const { return rounding == Rounding::torch_v1 ? 8 : 16; }
};

// Pillow's ImageFilter.GaussianBlur: three box blurs, which come close.
struct BoxBlurWith {
  double radius;
};

// Pixel (x, y) of the result comes from (a x + b y + c, d x + e y + f) of the image; on tensors
// with places from the middle of the image, and with a size of the result if that is another one.
struct AffineWith {
  AffineMatrix matrix;
  Interpolation interpolation;
  Color fill;
  Rounding rounding = Rounding::pillow;
  std::optional<std::array<int, 2>> size = std::nullopt;  // width, height
};

// Pixel (x, y) comes from ((a x + b y + c) / w, (d x + e y + f) / w) with w = g x + h y + 1.
struct PerspectiveWith {
  PerspectiveCoefficients coefficients;
  Interpolation interpolation;
  Color fill;
  Rounding rounding = Rounding::pillow;
};

// Degrees, counter-clockwise; the result grows to hold all of the image where `expand`.
struct RotateBy {
  double angle;
  Interpolation interpolation;
  bool expand;
  std::optional<Point> centre;
  Color fill;
};

struct PadBy {
  Padding padding;
  PadMode mode;
  Color fill;
};

// A rectangle inside the image filled with a color.
struct EraseBox {
  int x, y, width, height;
  Color fill;
};

// A rectangle of the converted result: `values` are the elements of one pixel, channel by channel;
// without values, normally distributed noise that depends on `noise` alone.
struct EraseResult {
  int x, y, width, height;
  std::vector<uint8_t> values;
  bool noise_per_pixel;  // or one draw per channel
  uint64_t noise;
};

// How a tensor lies in memory: channel by channel, or as the one that it was made of.
enum class Layout { planar, kept };

// Levels become floats by the plan's conversion. Windows, flips, resizes by torch's filters for
// floats, constant borders, changes of colors and NormalizeBy may follow; fills are 0.0 to 255.0
// then. The layout is that of torchvision's tensor.
struct ToFloats {
  Layout layout = Layout::planar;
};

// Of floats: (value - mean) / deviation, each step rounded to float32.
struct NormalizeBy {
  std::array<float, 3> mean, deviation;
};

struct MixOf;

using Operation =
    std::variant<CropTo, ResizeTo, ReduceBy, FlipHorizontally, FlipVertically, ColorTo, LookUp,
                 SelectChannels, BlurWith, BoxBlurWith, AffineWith, PerspectiveWith, RotateBy,
                 PadBy, EraseBox, EraseResult, ToFloats, NormalizeBy, MixOf>;
using Parameters = std::vector<Operation>;

// How chains of operations are mixed with the image; everything is truncated to levels.
enum class Mixing {
  sum,         // image x weight + sum of the chains x their weights
  over,        // that sum of the chains alone, then blended over the image by `weight`
  successive,  // each chain blended over what is there so far, by the chain's weight
};

// What each chain makes of the image, mixed with the image. Chains keep the image's size.
struct MixOf {
  float weight;
  std::vector<float> weights;
  std::vector<Parameters> chains;
  Mixing mixing = Mixing::sum;
};

}  // namespace fusionloader
