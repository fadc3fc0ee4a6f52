// Arithmetic of Pillow's src/libImaging/Resample.c, and of torch's antialiased resize of 8-bit
// tensors (aten/src/ATen/native/cpu/UpSampleKernel.cpp): every expression is evaluated in float64
// in the same order, so that every weight has the same bits.
#include "resize/weights.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fusionloader {
namespace {

constexpr double pi = 3.14159265358979323846;

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bilinear(double x) {
  const double distance = std::fabs(x);
  return distance < 1.0 ? 1.0 - distance : 0.0;
}

double hamming(double x) {
  const double distance = std::fabs(x);
  if (distance == 0.0) return 1.0;
  if (distance >= 1.0) return 0.0;
  const double angle = distance * pi;
  // Pillow's constants are single precision.
  return std::sin(angle) / angle *
         (static_cast<double>(0.54f) + static_cast<double>(0.46f) * std::cos(angle));
}

double bicubic(double x) {
  constexpr double a = -0.5;
  const double distance = std::fabs(x);
  if (distance < 1.0) return ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1;
  if (distance < 2.0) return (((distance - 5) * distance + 8) * distance - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  const double angle = x * pi;
  return std::sin(angle) / angle;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

int32_t to_fixed_point(double weight) {
  const double scaled = weight * (1 << weight_bits);
  return static_cast<int32_t>(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

}  // namespace

void Weights::prepare(int outputs, size_t stride) {
  outputs_ = outputs;
  stride_ = stride;
  first_.resize(static_cast<size_t>(outputs));
  count_.resize(static_cast<size_t>(outputs));
  taps_.resize(static_cast<size_t>(outputs) * stride);
}

void Weights::find_extent() {
  most_taps_ = 0;
  inputs_begin_ = outputs_ ? first_[0] : 0;
  inputs_end_ = inputs_begin_;
  for (int i = 0; i < outputs_; ++i) {
    most_taps_ = std::max(most_taps_, count(i));
    inputs_begin_ = std::min(inputs_begin_, first(i));
    inputs_end_ = std::max(inputs_end_, first(i) + count(i));
  }
}

template <class Kernel>
void Weights::fill(Kernel kernel, double kernel_support, const Axis& axis) {
  const double scale = axis.in_length / axis.out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kernel_support * filter_scale;
  const double inverse = 1.0 / filter_scale;
  prepare(axis.keep_count, static_cast<size_t>(std::ceil(support)) * 2 + 1);
  exact_.resize(stride_);
  for (int i = 0; i < axis.keep_count; ++i) {
    const double centre = axis.in_begin + (axis.keep_begin + i + 0.5) * scale;
    const int begin = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), axis.in_size);
    const int taps = end - begin;
    double sum = 0.0;
    for (int t = 0; t < taps; ++t) {
      const double weight = kernel((t + begin - centre + 0.5) * inverse);
      exact_[static_cast<size_t>(t)] = weight;
      sum += weight;
    }
    const int target = axis.mirrored ? axis.keep_count - 1 - i : i;
    int32_t* fixed = &taps_[static_cast<size_t>(target) * stride_];
    for (int t = 0; t < taps; ++t) {
      const double weight = exact_[static_cast<size_t>(t)];
      fixed[t] = to_fixed_point(sum != 0.0 ? weight / sum : weight);
    }
    first_[static_cast<size_t>(target)] = begin;
    count_[static_cast<size_t>(target)] = taps;
  }
  find_extent();
}

// Torch rounds weights to 16 bits, with as many fractional bits as the largest weight of the axis
// leaves. The kernels take such a weight with zeros for the other fractional bits: the sum, its
// rounding and the shift then give what they give with fewer bits.
template <class Kernel>
void Weights::fill_as_torch(Kernel kernel, double kernel_support, const Axis& axis) {
  const double scale = axis.in_length / axis.out_size;
  const double support = scale >= 1.0 ? kernel_support * scale : kernel_support;
  const double inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
  prepare(axis.keep_count, static_cast<size_t>(std::ceil(support)) * 2 + 1);
  exact_.assign(static_cast<size_t>(axis.out_size) * stride_, 0.0);
  double largest = 0.0;
  for (int i = 0; i < axis.out_size; ++i) {
    const double centre = axis.in_begin + scale * (i + 0.5);
    const int begin = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), axis.in_size);
    const int taps = std::clamp(end - begin, 0, static_cast<int>(stride_));
    double* weights = &exact_[static_cast<size_t>(i) * stride_];
    double sum = 0.0;
    const double from_centre = begin - centre;
    for (int t = 0; t < taps; ++t) sum += weights[t] = kernel((t + from_centre + 0.5) * inverse);
    for (int t = 0; t < taps; ++t) {
      if (sum != 0.0) weights[t] /= sum;
      largest = std::max(largest, weights[t]);
    }
    const int kept = i - axis.keep_begin;
    if (kept < 0 || kept >= axis.keep_count) continue;
    const int target = axis.mirrored ? axis.keep_count - 1 - kept : kept;
    first_[static_cast<size_t>(target)] = begin;
    count_[static_cast<size_t>(target)] = taps;
  }
  int bits = 0;
  while (bits < weight_bits && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < 1 << 15)
    ++bits;
  for (int kept = 0; kept < axis.keep_count; ++kept) {
    const int target = axis.mirrored ? axis.keep_count - 1 - kept : kept;
    const double* weights = &exact_[static_cast<size_t>(axis.keep_begin + kept) * stride_];
    int32_t* fixed = &taps_[static_cast<size_t>(target) * stride_];
    for (int t = 0; t < count(target); ++t) {
      const double scaled = weights[t] * (1 << bits);
      fixed[t] = static_cast<int32_t>(scaled < 0 ? -0.5 + scaled : 0.5 + scaled) *
                 (1 << (weight_bits - bits));
    }
  }
  find_extent();
}

void Weights::compute(Filter filter, const Axis& axis) {
  switch (filter) {
    case Filter::box:
      return fill(box, 0.5, axis);
    case Filter::bilinear:
      return fill([](double x) { return bilinear(x); }, 1.0, axis);
    case Filter::hamming:
      return fill(hamming, 1.0, axis);
    case Filter::bicubic:
      return fill([](double x) { return bicubic(x); }, 2.0, axis);
    case Filter::lanczos:
      return fill(lanczos, 3.0, axis);
    case Filter::torch_bilinear:
      return fill_as_torch([](double x) { return bilinear(x); }, 1.0, axis);
    case Filter::torch_bicubic:
      return fill_as_torch([](double x) { return bicubic(x); }, 2.0, axis);
    case Filter::float_bilinear:
    case Filter::float_bicubic:
    case Filter::float_aliased_bilinear:
      throw std::invalid_argument("levels cannot be resized by a filter for floats");
  }
}

void Weights::compute_identity(const Axis& axis) {
  prepare(axis.keep_count, 1);
  for (int i = 0; i < axis.keep_count; ++i) {
    const auto target = static_cast<size_t>(axis.mirrored ? axis.keep_count - 1 - i : i);
    first_[target] = axis.keep_begin + i;
    count_[target] = 1;
    taps_[target] = 1 << weight_bits;
  }
  find_extent();
}

}  // namespace fusionloader
