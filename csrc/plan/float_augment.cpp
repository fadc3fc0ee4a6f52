#include "plan/float_augment.hpp"

#include <algorithm>
#include <stdexcept>

#include "ops/float_sum.hpp"
#include "ops/limits.hpp"
#include "ops/tensor_resize.hpp"
#include "plan/augment.hpp"

namespace fusionloader {
namespace {

// A factor that leaves room for products in float32.
double possible(double factor) {
  if (!(std::abs(factor) <= 1e6))
    throw std::invalid_argument("a color operation's number is out of range");
  return factor;
}

}  // namespace

bool changes_floats(const Operation& operation) {
  if (std::holds_alternative<SelectChannels>(operation)) return true;
  if (const auto* blur = std::get_if<BlurWith>(&operation))
    return blur->rounding != Rounding::pillow;
  if (is_tensor_warp(operation)) return true;
  if (const auto* resize = std::get_if<ResizeTo>(&operation))
    return resize->filter == Filter::float_aliased_bilinear && !resize->box;
  const auto* color = std::get_if<ColorTo>(&operation);
  return color && color->kind != ColorKind::posterize && color->kind != ColorKind::equalize &&
         color->kind != ColorKind::solarize_add;
}

FloatSize size_after(const Operation& operation, FloatSize size) {
  if (const auto* resize = std::get_if<ResizeTo>(&operation)) {
    size = {resize->width, resize->height};
  } else if (is_tensor_warp(operation)) {
    const TensorWarp warp = tensor_warp(operation, size.width, size.height);
    size = {warp.width, warp.height};
  }
  require_possible_size(size.width, size.height);
  return size;
}

float* FloatAugmenter::begin(size_t channels, int width, int height) {
  channels_ = channels;
  shape_.width = static_cast<size_t>(width);
  shape_.height = static_cast<size_t>(height);
  grow(image_, shape_.elements());
  return image_.data();
}

const float* FloatAugmenter::run(const std::vector<Operation>& operations, float* out) {
  for (size_t i = 0; i < operations.size(); ++i) {
    const auto [width, height] = size_after(
        operations[i], {static_cast<int>(shape_.width), static_cast<int>(shape_.height)});
    const TensorShape made{1, static_cast<size_t>(height), static_cast<size_t>(width), false};
    const bool is_last = out != nullptr && i + 1 == operations.size();
    if (!is_last) grow(other_, made.elements());
    apply(operations[i], image_.data(), is_last ? out : other_.data());
    shape_ = made;
    if (is_last) return out;
    std::swap(image_, other_);
  }
  return image_.data();
}

void FloatAugmenter::apply(const Operation& operation, const float* from, float* to) {
  if (const auto* by = std::get_if<NormalizeBy>(&operation)) return normalize(*by, from, to);
  const size_t width = shape_.width, height = shape_.height;
  if (const auto* resize = std::get_if<ResizeTo>(&operation))
    return interpolate_planes(from, channels_, width, height, to,
                              static_cast<size_t>(resize->width),
                              static_cast<size_t>(resize->height), simd_);
  if (is_tensor_warp(operation)) {
    const TensorWarp by = tensor_warp(operation, static_cast<int>(width), static_cast<int>(height));
    return warp_planes(from, channels_, shape_, to, by, workspace_);
  }
  if (channels_ != 3) throw std::invalid_argument("colors of floats are those of three channels");
  if (const auto* color = std::get_if<ColorTo>(&operation)) return apply(*color, from, to);
  if (const auto* blur = std::get_if<BlurWith>(&operation)) return apply(*blur, from, to);
  const size_t pixels = shape_.pixels();
  for (const uint8_t channel : std::get<SelectChannels>(operation).channels)
    to = std::copy_n(from + channel * pixels, pixels, to);
}

void FloatAugmenter::normalize(const NormalizeBy& by, const float* from, float* to) const {
  if (channels_ == 3) return normalize_tensor(from, to, shape_, by.mean, by.deviation, simd_);
  std::transform(from, from + shape_.pixels(), to,
                 [&](float value) { return (value - by.mean[0]) / by.deviation[0]; });
}

void FloatAugmenter::apply(const ColorTo& color, const float* from, float* to) {
  const bool v2 = color.rounding != Rounding::torch_v1;
  const size_t count = shape_.elements(), pixels = shape_.pixels();
  const TensorFactor by(possible(color.value));
  switch (color.kind) {
    case ColorKind::brightness:
      if (color.rounding == Rounding::torch_v1) {
        const float black = 0.0f;  // blended from it, -0.0 becomes 0.0
        return blend_from_levels(from, &black, to, shape_, by, false, simd_);
      }
      return scale_elements(from, to, count, by.factor, simd_);
    case ColorKind::contrast: {
      const float mean = mean_of_grey(from, v2);
      return blend_from_levels(from, &mean, to, shape_, by, v2, simd_,
                               color.rounding == Rounding::torch_v2_interleaved);
    }
    case ColorKind::saturation:
      return blend_from_pixels(from, to, shape_, by, v2, simd_);
    case ColorKind::hue:
      if (!(color.value >= -0.5 && color.value <= 0.5))
        throw std::invalid_argument("a hue factor of tensors is -0.5 to 0.5");
      if (!turn_hue(from, to, shape_, by.factor, v2, simd_))
        throw std::invalid_argument("no hue is turned of floats beyond 1e38");
      return;
    case ColorKind::sharpness:
      if (shape_.width > 2 && shape_.height > 2)
        return blend_from_smoothed(from, to, shape_, by, v2, simd_);
      std::copy_n(from, count, to);
      return;
    case ColorKind::grayscale:
      grey_of_tensor(from, to, shape_, v2, simd_);
      std::copy_n(to, pixels, to + pixels);
      std::copy_n(to, pixels, to + 2 * pixels);
      return;
    case ColorKind::autocontrast:
      stretch_tensor(from, to, shape_, v2, simd_);
      return;
    case ColorKind::invert:
      return invert_floats(from, to, count, simd_);
    case ColorKind::solarize:
      return solarize_elements(from, to, count, by.factor, simd_);
    default:
      throw std::logic_error("not an operation on floats");
  }
}

void FloatAugmenter::apply(const BlurWith& blur, const float* from, float* to) {
  const BlurSquare square =
      blur_square(blur.kernel_height, blur.kernel_width, static_cast<float>(blur.sigma_y),
                  static_cast<float>(blur.sigma_x), blur.lanes());
  const size_t pixels = shape_.pixels();
  for (size_t channel = 0; channel < 3; ++channel)
    blur_plane(from + channel * pixels, 1, to + channel * pixels, static_cast<int>(shape_.height),
               static_cast<int>(shape_.width), square, blurred_, simd_);
}

float FloatAugmenter::mean_of_grey(const float* from, bool fused) {
  const size_t pixels = shape_.pixels();
  grow(grey_, pixels);
  grey_of_tensor(from, grey_.data(), shape_, fused, simd_);
  FloatSum sum(pixels);
  sum.add(static_cast<const float*>(grey_.data()), pixels, simd_);
  return sum.total() / static_cast<float>(pixels);
}

void FloatAugmenter::release_large_buffers() {
  for (std::vector<float>* buffer : {&image_, &other_, &grey_, &blurred_})
    if (buffer->size() * sizeof(float) > largest_kept_buffer) std::vector<float>().swap(*buffer);
  if (workspace_.floats.size() * sizeof(float) > largest_kept_buffer) workspace_.release();
}

}  // namespace fusionloader
