#include "plan/augment.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "ops/limits.hpp"
#include "ops/lookup.hpp"
#include "ops/mix.hpp"
#include "ops/tensor_blur.hpp"

namespace fusionloader {
bool is_of_a_pass(const Operation& operation) {
  return std::holds_alternative<CropTo>(operation) || std::holds_alternative<ResizeTo>(operation) ||
         std::holds_alternative<ReduceBy>(operation) ||
         std::holds_alternative<FlipHorizontally>(operation) ||
         std::holds_alternative<FlipVertically>(operation);
}

bool is_tensor_warp(const Operation& operation) {
  if (const auto* by = std::get_if<AffineWith>(&operation)) return by->rounding != Rounding::pillow;
  const auto* by = std::get_if<PerspectiveWith>(&operation);
  return by && by->rounding != Rounding::pillow;
}

TensorWarp tensor_warp(const Operation& operation, int width, int height) {
  const auto warp_by = [&](const auto& by, auto map) {
    TensorWarp made{map, width, height, by.interpolation, by.rounding, {}};
    std::copy(by.fill.begin(), by.fill.end(), made.fill.begin());
    return made;
  };
  if (const auto* by = std::get_if<PerspectiveWith>(&operation))
    return warp_by(*by, by->coefficients);
  const auto& by = std::get<AffineWith>(operation);
  TensorWarp made = warp_by(by, by.matrix);
  if (by.size) std::tie(made.width, made.height) = std::tie((*by.size)[0], (*by.size)[1]);
  require_possible_size(made.width, made.height);
  return made;
}

namespace {

void blur_tensor(Planes& image, const BlurWith& by, BlurMemory& memory, SimdLevel level) {
  const BlurSquare square =
      blur_square(by.kernel_height, by.kernel_width, static_cast<float>(by.sigma_y),
                  static_cast<float>(by.sigma_x), by.lanes());
  for (int channel = 0; channel < image.channels(); ++channel) {
    uint8_t* plane = image.plane(channel);
    blur_plane(static_cast<const uint8_t*>(plane), 1, plane, image.height(), image.width(), square,
               memory, level);
  }
}

}  // namespace

Augmenter::Augmenter(SimdLevel simd) : simd_(simd) { workspace_.simd = simd; }

void Augmenter::apply(const Operation& operation, Planes& image) {
  if (const auto* color = std::get_if<ColorTo>(&operation)) return apply(*color, image);
  if (const auto* mix = std::get_if<MixOf>(&operation)) return apply(*mix, image);
  if (const auto* by = std::get_if<LookUp>(&operation)) return look_up(image, by->tables, simd_);
  if (const auto* by = std::get_if<SelectChannels>(&operation))
    return warp(image, [&] { select_channels(image, other_, by->channels); });
  if (const auto* blur = std::get_if<BlurWith>(&operation);
      blur && blur->rounding != Rounding::pillow)
    return blur_tensor(image, *blur, scratch_.floats, simd_);
  if (const auto* blur = std::get_if<BlurWith>(&operation))
    return gaussian_blur(image, blur->kernel_width, blur->kernel_height, blur->sigma_x,
                         blur->sigma_y, scratch_, simd_);
  if (const auto* blur = std::get_if<BoxBlurWith>(&operation))
    return box_gaussian_blur(image, blur->radius, scratch_);
  if (const auto* box = std::get_if<EraseBox>(&operation)) {
    const uint8_t values[3] = {box->fill[0], box->fill[1], box->fill[2]};
    return erase(image, {box->x, box->y, box->width, box->height}, values);
  }
  if (is_tensor_warp(operation))
    return warp(image, [&] {
      const TensorWarp by = tensor_warp(operation, image.width(), image.height());
      warp_tensor(image, other_, by, workspace_);
    });
  if (const auto* affine = std::get_if<AffineWith>(&operation))
    return warp(image, [&] {
      affine_transform(image, other_, image.width(), image.height(), affine->matrix,
                       affine->interpolation, affine->fill, workspace_);
    });
  if (const auto* perspective = std::get_if<PerspectiveWith>(&operation))
    return warp(image, [&] {
      perspective_transform(image, other_, perspective->coefficients, perspective->interpolation,
                            perspective->fill, workspace_);
    });
  if (const auto* turn = std::get_if<RotateBy>(&operation))
    return warp(image, [&] {
      rotate(image, other_, turn->angle, turn->interpolation, turn->expand, turn->centre,
             turn->fill, workspace_);
    });
  if (const auto* padding = std::get_if<PadBy>(&operation))
    return warp(image, [&] {
      pad(image, other_, padding->padding, padding->mode, padding->fill, workspace_);
    });
  throw std::invalid_argument("a mix cannot hold windows, flips or erasing of the result");
}

template <class Warp>
void Augmenter::warp(Planes& image, Warp make) {
  make();
  std::swap(image, other_);
}

void Augmenter::apply(const ColorTo& color, Planes& image) {
  switch (color.kind) {
    case ColorKind::brightness:
      return adjust_brightness(image, color.value, simd_);
    case ColorKind::contrast:
      return adjust_contrast(image, color.value, color.rounding, simd_);
    case ColorKind::saturation:
      return adjust_saturation(image, color.value, color.rounding, simd_);
    case ColorKind::hue:
      return adjust_hue(image, color.value, color.rounding, simd_);
    case ColorKind::sharpness:
      return adjust_sharpness(image, color.value, color.rounding, scratch_, simd_);
    case ColorKind::posterize:
      return posterize(image, whole_number(color.value), simd_);
    case ColorKind::solarize:
      return solarize(image, color.value, simd_);
    case ColorKind::solarize_add:
      return solarize_add(image, whole_number(color.value), 128, simd_);
    case ColorKind::invert:
      return invert(image, simd_);
    case ColorKind::autocontrast:
      return autocontrast(image, color.rounding, simd_);
    case ColorKind::equalize:
      return equalize(image, simd_);
    case ColorKind::grayscale:
      return to_grayscale(image, image.channels(), color.rounding, simd_);
  }
}

void Augmenter::apply(const MixOf& mix, Planes& image) {
  const bool successive = mix.mixing == Mixing::successive;
  if (successive)
    so_far_.copy(image);
  else
    sum_.start(image);
  if (mix.mixing == Mixing::sum) sum_.add(image, mix.weight, simd_);
  for (size_t i = 0; i < mix.chains.size(); ++i) {
    mixed_.copy(image);
    for (const Operation& operation : mix.chains[i]) {
      if (std::holds_alternative<MixOf>(operation))
        throw std::invalid_argument("a mix cannot hold another");
      apply(operation, mixed_);
    }
    if (mixed_.width() != image.width() || mixed_.height() != image.height())
      throw std::invalid_argument("a chain of a mix changes the image's size");
    if (successive)
      blend_over(so_far_, mixed_, mix.weights[i], simd_);
    else
      sum_.add(mixed_, mix.weights[i], simd_);
  }
  if (successive) return std::swap(image, so_far_);
  // The weights add up to one but for rounding.
  if (mix.mixing == Mixing::sum) return sum_.store(image, simd_);
  mixed_.copy(image);
  sum_.store(mixed_, simd_);
  blend_over(image, mixed_, mix.weight, simd_);
}

void Augmenter::release_large_buffers() {
  if (other_.capacity() > largest_kept_buffer) other_.release();
  if (mixed_.capacity() > largest_kept_buffer) mixed_.release();
  if (so_far_.capacity() > largest_kept_buffer) so_far_.release();
  if (sum_.bytes() > largest_kept_buffer) sum_.release();
  if (scratch_.rows.capacity() + scratch_.floats.capacity() * sizeof(float) > largest_kept_buffer)
    scratch_ = {};
  if (workspace_.packed.capacity() * sizeof(uint32_t) > largest_kept_buffer) workspace_.release();
}

}  // namespace fusionloader
