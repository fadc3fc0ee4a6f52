#pragma once
// Rows of float32 pixels, four floats each: red, green, blue, and one that is not looked at.
//
// Arithmetic: torch's for float32 tensors (aten/src/ATen/native/cpu/UpSampleKernel.cpp) as its
// compiler makes it for processors with fused multiply-adds. Products are added to the sum tap by
// tap. The first is rounded, and so are those of the groups of four that the others are taken in;
// what is left, up to three taps, is added by fused multiply-adds.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/rows.hpp"
#include "resize/filter.hpp"
#include "simd/level.hpp"

namespace fusionloader {

constexpr size_t floats_per_pixel = 4;
using FloatPixel = std::array<float, floats_per_pixel>;

// The weights of one axis of torch's antialiased resize of float32 tensors: every expression has
// torch's types and order, so that every weight has the same bits.
class FloatWeights {
 public:
  // Of `in_size` inputs to `out_size` outputs, of which `count` from `begin` on are wanted, in
  // reverse if `mirrored`. Throws std::invalid_argument for a filter that is not one for floats.
  void compute(Filter filter, int in_size, int out_size, int begin, int count, bool mirrored);

  int first(int output) const { return first_[static_cast<size_t>(output)]; }
  int count(int output) const { return count_[static_cast<size_t>(output)]; }
  const float* taps(int output) const { return &taps_[static_cast<size_t>(output) * stride_]; }
  size_t outputs() const { return first_.size(); }
  int most_taps() const { return static_cast<int>(stride_); }
  // The inputs that any output needs.
  int inputs_begin() const { return inputs_begin_; }
  int inputs_end() const { return inputs_end_; }

 private:
  template <class Kernel>
  void fill(Kernel kernel, float kernel_support, int in_size, int out_size, int begin,
            bool mirrored);

  size_t stride_ = 0;
  int inputs_begin_ = 0, inputs_end_ = 0;
  std::vector<int> first_, count_;
  std::vector<float> taps_;
};

// The outputs of `weights`, from `rows_at_once` rows that start with its first input, to as many.
void weigh_columns(SimdLevel level, const float* const* rows, const FloatWeights& weights,
                   float* const* out);
// `floats` sums over `count` rows; writes up to 15 more, and reads as many from each row.
void weigh_rows(SimdLevel level, const float* const* rows, const float* weights, int count,
                float* out, size_t floats);
// (value - mean) / deviation, each step rounded.
void subtract_and_divide(SimdLevel level, float* row, size_t pixels, const FloatPixel& mean,
                         const FloatPixel& deviation);
// The first `channels` of each pixel to rows `plane` floats apart.
void split_channels(SimdLevel level, const float* row, size_t pixels, size_t channels, float* out,
                    size_t plane);
// Rounded to even and clipped to 0 .. 255.
void round_to_levels(SimdLevel level, const float* row, size_t pixels, uint8_t* out);
// RGBX levels through a table of 256 floats for each channel; the fourth float becomes 0.
void look_up_floats(const uint8_t* levels, size_t pixels, const float* const (&tables)[3],
                    float* out);

}  // namespace fusionloader
