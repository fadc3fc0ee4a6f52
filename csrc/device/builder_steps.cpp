// Each kind of operation as steps.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "device/builder.hpp"
#include "ops/blend.hpp"
#include "ops/blur_kernels.hpp"
#include "ops/limits.hpp"

namespace fusionloader::device {
namespace {

constexpr size_t table_size = 256;

Filtering filtering_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::nearest:
      return Filtering::nearest;
    case Interpolation::bilinear:
      return Filtering::bilinear;
    default:
      return Filtering::bicubic;
  }
}

template <size_t count>
WarpStep warp_of(const double (&coefficients)[count], Filtering filtering, uint32_t fill) {
  WarpStep warp{{}, filtering, fill};
  std::copy(coefficients, coefficients + count, warp.coefficients);
  return warp;
}

void require_pillow(Rounding rounding) {
  if (rounding != Rounding::pillow)
    throw std::invalid_argument("a device program cannot round as torchvision does on tensors");
}

}  // namespace

void BatchBuilder::add_operation(const Operation& operation) {
  if (const auto* color = std::get_if<ColorTo>(&operation)) return add_color(*color);
  if (const auto* affine = std::get_if<AffineWith>(&operation)) {
    require_pillow(affine->rounding);
    return add_affine(affine->matrix.data(), affine->interpolation, affine->fill, width_, height_);
  }
  if (const auto* turn = std::get_if<RotateBy>(&operation)) return add_rotation(*turn);
  if (const auto* box = std::get_if<EraseBox>(&operation)) return add_erased(*box);
  if (const auto* padding = std::get_if<PadBy>(&operation)) return add_border(*padding);
  if (const auto* blur = std::get_if<BlurWith>(&operation)) return add_gaussian(*blur);
  if (const auto* blur = std::get_if<BoxBlurWith>(&operation)) {
    Box box;
    if (box_for_radius(blur->radius, box)) add_step(StepKind::box_blur).box = box;
    return;
  }
  if (const auto* with = std::get_if<PerspectiveWith>(&operation)) {
    require_pillow(with->rounding);
    WarpStep& warp = add_step(StepKind::perspective).warp;
    warp.filtering = filtering_of(with->interpolation);
    warp.fill = packed_fill(with->fill);
    std::copy(with->coefficients.begin(), with->coefficients.end(), warp.coefficients);
    return;
  }
  throw std::invalid_argument("a device program cannot do: " +
                              unsupported({operation}).value_or("an operation"));
}

void BatchBuilder::add_color(const ColorTo& color) {
  require_pillow(color.rounding);
  const bool grey = plan_.channels == 1;
  switch (color.kind) {
    case ColorKind::contrast:
      return add_blend(StepKind::contrast, color.value);
    case ColorKind::saturation:
      if (!grey) add_blend(StepKind::saturation, color.value);
      return;
    case ColorKind::grayscale:  // blended wholly from the grey levels
      if (!grey) add_blend(StepKind::saturation, 0.0);
      return;
    case ColorKind::sharpness:
      blend_factor(color.value);
      if (width_ >= 3 && height_ >= 3) add_blend(StepKind::sharpness, color.value);
      return;
    case ColorKind::hue:
      if (!grey) add_step(StepKind::hue).hue = {whole_number(color.value * 255.0) & 255};
      return;
    case ColorKind::autocontrast:
      add_step(StepKind::autocontrast);
      return;
    case ColorKind::equalize:
      add_step(StepKind::equalize);
      return;
    default:
      return add_table(color);
  }
}

void BatchBuilder::add_blend(StepKind kind, double factor) {
  add_step(kind).blend = {blend_factor(factor)};
}

// The native operation itself says what becomes of each level. Tables in a row become one.
void BatchBuilder::add_table(const Operation& operation) {
  levels_.reset(1, table_size, 1);
  uint8_t* table = levels_.plane(0);
  for (size_t i = 0; i < table_size; ++i) table[i] = static_cast<uint8_t>(i);
  augmenter_.apply(operation, levels_);
  if (steps_.size() > first_step_ && steps_.back().kind == StepKind::table) {
    uint8_t* before = data_.data() + steps_.back().data;
    for (size_t i = 0; i < table_size; ++i) before[i] = table[before[i]];
    return;
  }
  const uint32_t data = add_data(table, table_size);
  add_step(StepKind::table).data = data;
}

// The ways of ops/affine.cpp, which round differently.
void BatchBuilder::add_affine(const double* m, Interpolation interpolation, const Color& color,
                              int out_width, int out_height) {
  const int width = width_, height = height_;
  const uint32_t fill = packed_fill(color);
  const double matrix[6] = {m[0], m[1], m[2], m[3], m[4], m[5]};
  const bool whole = moves_whole_pixels(matrix);
  const auto add_warp = [&](StepKind kind) {
    add_step(kind, out_width, out_height).warp = warp_of(matrix, filtering_of(interpolation), fill);
  };
  if (interpolation != Interpolation::nearest && !whole) return add_warp(StepKind::affine);
  if (whole) {
    add_step(StepKind::window, out_width, out_height).window = {
        0,    0,     width, height, static_cast<int>(matrix[2]), static_cast<int>(matrix[5]),
        fill, false, false};
    return;
  }
  if (matrix[1] == 0 && matrix[3] == 0) {
    add_warp(StepKind::scale);
    extra_ = std::max(extra_, sizeof(int) * static_cast<size_t>(out_width + out_height));
    return;
  }
  if (!fits_fixed_everywhere(matrix, out_width, out_height)) return add_warp(StepKind::added_up);
  add_step(StepKind::fixed_point, out_width, out_height).fixed = {
      first_fixed_line(matrix), to_fixed(matrix[1]), to_fixed(matrix[4]), fill};
}

// The ways of ops/rotate.cpp.
void BatchBuilder::add_rotation(const RotateBy& by) {
  const double turn = whole_turn_remainder(by.angle);
  int width = width_, height = height_;
  if (!by.centre) {
    if (turn == 0) return;
    if (turn == 180) {
      add_step(StepKind::window).window = {0, 0, width, height, 0, 0, 0, true, true};
      return;
    }
    if ((turn == 90 || turn == 270) && (by.expand || width == height)) {
      add_step(StepKind::quarter_turn, height, width).quarter_turn = {turn == 270};
      return;
    }
  }
  const AffineMatrix matrix = rotation_matrix(
      turn, by.centre.value_or(Point{width / 2.0, height / 2.0}), by.expand, width, height);
  add_affine(matrix.data(), by.interpolation, by.fill, width, height);
}

void BatchBuilder::add_border(const PadBy& by) {
  const Padding& sides = by.padding;
  const BorderStep border{padded_axis(width_, sides.left, sides.right, by.mode),
                          padded_axis(height_, sides.top, sides.bottom, by.mode), by.mode,
                          packed_fill(by.fill)};
  add_step(StepKind::border, border.across.length, border.down.length).border = border;
}

void BatchBuilder::add_gaussian(const BlurWith& blur) {
  require_pillow(blur.rounding);
  const HalfKernel across = half_kernel(blur.kernel_width, blur.sigma_x);
  const HalfKernel down = half_kernel(blur.kernel_height, blur.sigma_y);
  require_room_for_kernels(blur.kernel_width, blur.kernel_height, width_, height_);
  std::array<float, 2 * (HalfKernel::most_reach + 1)> weights;
  float* end = std::copy_n(across.weights, across.reach + 1, weights.data());
  end = std::copy_n(down.weights, down.reach + 1, end);
  const uint32_t data =
      add_data(weights.data(), sizeof(float) * static_cast<size_t>(end - weights.data()));
  Step& step = add_step(StepKind::gaussian);
  step.data = data;
  step.gaussian = {across.reach, down.reach};
  extra_ = std::max(extra_,
                    3 * sizeof(float) * static_cast<size_t>(width_) * static_cast<size_t>(height_));
}

void BatchBuilder::add_erased(const EraseBox& box) {
  const auto end = [](int begin, int length, int most) {
    return static_cast<int>(std::min<int64_t>(int64_t{begin} + length, most));
  };
  const int left = std::max(box.x, 0), top = std::max(box.y, 0);
  const int width = end(box.x, box.width, width_) - left;
  const int height = end(box.y, box.height, height_) - top;
  if (width > 0 && height > 0)
    add_step(StepKind::erase).erase = {left, top, width, height, packed_fill(box.fill)};
}

}  // namespace fusionloader::device
