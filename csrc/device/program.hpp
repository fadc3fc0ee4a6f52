#pragma once
// What is done to the samples of one launch, as plain bytes that are copied to the device whole.
//
// A batch is one block of memory: the header, then records, steps, erasures and data, each at the
// place (in bytes from the block's beginning) that the header names. Images and results are
// addresses of the device's memory, or of the host's where the same program runs there.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "arithmetic/blurs.hpp"
#include "arithmetic/borders.hpp"
#include "arithmetic/points.hpp"

namespace fusionloader::device {

// As many as a block can have: a launch may have fewer samples than the device has processors. They
// leave 64 registers to each.
constexpr int threads_per_block = 1024;

enum class StepKind : int32_t {
  // Each place of the result shows one of the image, or a color.
  window,
  border,
  quarter_turn,
  scale,        // nearest, coordinates by adding up
  fixed_point,  // nearest, in 16.16
  added_up,     // nearest, coordinates too large for that
  affine,       // with a filter
  perspective,  // with any filter
  resize,
  // Each place by itself.
  table,
  saturation,
  hue,
  erase,
  // A table that depends on the whole image.
  contrast,
  autocontrast,
  equalize,
  // Neighbourhoods.
  sharpness,
  gaussian,
  box_blur,
};

// The part of the image from (left, top), of which (x, y) becomes the first place. What lies
// outside of that part is `fill`. Flips come last.
struct WindowStep {
  int32_t left, top, width, height, x, y;
  uint32_t fill;
  bool mirrored, upside_down;
};
// In the data: int32s, the first input of each output, then the count of its inputs, then the
// weights of all outputs' first inputs, of their second ones, and so on. Inputs are counted from
// the first one that is read, of `inputs`.
struct ResizeAxis {
  uint32_t data;
  int32_t inputs, outputs;
};
// (left, top) is the first pixel of the image that is read.
struct ResizeStep {
  int32_t left, top;
  ResizeAxis across, down;
  bool down_first;
};
struct BorderStep {
  PaddedAxis across, down;
  PadMode mode;
  uint32_t fill;
};
struct QuarterTurn {
  bool clockwise;
};
enum class Filtering : int32_t { nearest, bilinear, bicubic };
struct WarpStep {
  double coefficients[8];
  Filtering filtering;
  uint32_t fill;
};
struct FixedStep {
  FixedLine line;
  uint32_t row_x, row_y, fill;
};
struct BlendStep {
  float factor;
};
struct HueStep {
  int32_t turn;
};
struct EraseStep {
  int32_t x, y, width, height;
  uint32_t fill;
};
// In the data: the weights across, then those down.
struct GaussianStep {
  int32_t reach_across, reach_down;
};

struct Step {
  StepKind kind;
  int32_t width, height;  // of what it makes
  uint32_t data;          // where its data begins in the batch's
  union {
    WindowStep window;
    ResizeStep resize;
    BorderStep border;
    QuarterTurn quarter_turn;
    WarpStep warp;
    FixedStep fixed;
    BlendStep blend;
    HueStep hue;
    EraseStep erase;
    GaussianStep gaussian;
    Box box;
  };
};

// A rectangle of the result, after the conversion. In the data: an element for each channel.
struct Erasure {
  int32_t x, y, width, height;
  uint32_t data;
};

struct Record {
  uint64_t pixels, out;  // addresses: height x width x channels bytes, the result
  uint64_t work;         // where its working memory begins, in bytes from that of all
  uint64_t most_pixels;  // of the two images that steps read and write, one after the other
  Step load;             // the way in: a window or a resize
  int32_t image_width;   // of the image given
  uint32_t first_step, steps, first_erasure, erasures;
};

// How levels become elements of the result.
struct Conversion {
  uint32_t table;  // in the data: `channels` x 256 elements
  int32_t element_size, channels;
  bool planar;  // channels x height x width; without a conversion height x width x channels
};

struct Batch {
  uint32_t samples;
  int32_t image_channels;
  uint32_t records, steps, erasures, data;
  Conversion conversion;
};

static_assert(std::is_trivially_copyable_v<Step> && std::is_trivially_copyable_v<Record> &&
              std::is_trivially_copyable_v<Erasure> && std::is_trivially_copyable_v<Batch>);
// Two compilers lay them out: the host's, and NVRTC for the device.
static_assert(sizeof(Step) == 88 && sizeof(Record) == 144 && sizeof(Erasure) == 20 &&
              sizeof(Batch) == 40);

}  // namespace fusionloader::device
