#include "jpeg/window_rows.hpp"

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr int block_side = 8;
// In front of a row of samples: one is needed, more keep rows aligned.
constexpr size_t margin = 64;
// Far above those of 8-bit files; below it no product leaves 32 bits.
constexpr int largest_quantiser = 2047;

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

WindowRows::WindowRows(SimdLevel level) : kernels_(sample_kernels(level)), level_(level) {}

bool WindowRows::supports(const Frame& frame, int denominator) {
  if (frame.width <= 0 || frame.height <= 0 || (frame.count != 1 && frame.count != 3)) return false;
  for (size_t i = 0; i < static_cast<size_t>(frame.count); ++i) {
    const FrameComponent& component = frame.components[i];
    const int most = i ? 1 : 2;
    if (component.h < 1 || component.h > most || component.v < 1 || component.v > most)
      return false;
    for (const uint16_t quantiser : component.quantisers)
      if (quantiser > largest_quantiser) return false;
  }
  // What libjpeg makes larger in one direction alone is left to it.
  if (denominator > 1 && frame.most_h() != frame.most_v()) return false;
  // Below three samples libjpeg does not interpolate.
  const int h = frame.components[0].h;
  return frame.count == 1 ? h == 1 && frame.components[0].v == 1 : h == 1 || frame.width > 2 * h;
}

// Of an image that is made smaller as many
// samples are taken from a block of chroma as make it no larger afterwards.
void WindowRows::place(const Frame& frame, Rect window, int denominator) {
  window_ = window;
  last_band_ = -1;
  count_ = frame.count;
  const int h = frame.most_h(), v = frame.most_v();
  const int side = block_side / denominator, mcu_width = side * h;
  const int image_width = divide_up(frame.width, denominator);
  const int image_height = divide_up(frame.height, denominator);
  wider_ = denominator > 1 ? 1 : h;
  higher_ = denominator > 1 ? 1 : v;
  mcus_across_ = divide_up(frame.width, block_side * h);
  // Upsampling looks at one chroma sample at each side: two pixels further.
  const int beyond = wider_ > 1 ? wider_ : 0;
  first_mcu_ = std::max(window.x - beyond, 0) / mcu_width;
  end_mcu_ = divide_up(std::min(window.x + window.width + beyond, image_width), mcu_width);
  for (size_t i = 0; i < static_cast<size_t>(count_); ++i) {
    const FrameComponent& component = frame.components[i];
    Plane& plane = planes_[i];
    plane.h = component.h;
    plane.v = component.v;
    plane.side = i == 0 || denominator == 1 ? side : side * h;
    plane.inverse_dct = reduced_dct(level_, plane.side);
    plane.width = i == 0 ? image_width : divide_up(image_width, wider_);
    plane.height = i == 0 ? image_height : divide_up(image_height, higher_);
    plane.first_column = first_mcu_ * plane.side * component.h;
    plane.columns = (end_mcu_ - first_mcu_) * plane.side * component.h;
    plane.stride = margin + static_cast<size_t>(plane.columns) + sample_slack;
    plane.band_bits = __builtin_ctz(static_cast<unsigned>(plane.side * component.v));
    grow(plane.samples, (plane.stride * bands << plane.band_bits) + sample_slack);
    for (size_t row = 0; row < 8; ++row)
      for (size_t column = 0; column < 8; ++column)
        plane.quantisers.values[coefficient_place(row, column)] =
            static_cast<int16_t>(component.quantisers[8 * row + column]);
  }
  first_chroma_ = window.x / wider_;
  chroma_columns_ = divide_up(window.x + window.width, wider_) - first_chroma_;
  for (std::vector<uint8_t>& row : chroma_)
    grow(row, static_cast<size_t>(window.width) + 4 + 2 * sample_slack);
}

uint8_t* WindowRows::Plane::row(int number) {
  // Asked for with each row of pixels: no division by what is not known here.
  const int slot = (number >> band_bits) % bands, in_band = number & ((1 << band_bits) - 1);
  return &samples[static_cast<size_t>((slot << band_bits) + in_band) * stride + margin];
}

void WindowRows::Plane::extend(int band) {
  const int first = band << band_bits;
  const int edge = width - first_column;
  for (int i = 0; i < 1 << band_bits; ++i) {
    uint8_t* const samples_of_row = row(first + i);
    *(samples_of_row - 1) = samples_of_row[0];
    if (edge <= columns) samples_of_row[edge] = samples_of_row[edge - 1];
  }
}

// The chroma of a row of pixels, from the window's first column on. `out` is room for it.
const uint8_t* WindowRows::chroma_row(Plane& plane, int y, uint8_t* out) {
  const bool wider = wider_ > 1, higher = higher_ > 1;  // by 2
  const auto count = static_cast<size_t>(chroma_columns_);
  const int here = y >> (higher ? 1 : 0), column = first_chroma_ - plane.first_column;
  const int beyond = wider ? window_.x & 1 : 0;
  const uint8_t* near = plane.row(here) + column;
  if (!higher) {
    if (!wider) return near;
    kernels_.widen(near, count, out);
    return out + beyond;
  }
  const bool far_is_below = y & 1;
  const int beside = std::clamp(far_is_below ? here + 1 : here - 1, 0, plane.height - 1);
  const uint8_t* far = plane.row(beside) + column;
  if (!wider) {
    kernels_.blend(near, far, far_is_below, count, out);
    return out;
  }
  kernels_.blend_and_widen(near, far, count, out);
  return out + beyond;
}

BlockTarget WindowRows::target(size_t component, int band, int row) {
  Plane& plane = planes_[component];
  return {&plane.quantisers, plane.row((band * plane.v + row) * plane.side), plane.stride};
}

void WindowRows::extend(int band) {
  for (size_t i = 1; i < static_cast<size_t>(count_); ++i) planes_[i].extend(band);
}

WindowRows::Bands WindowRows::bands_of_row(int y) const {
  y += window_.y;
  const Plane& luma = planes_[0];
  // The next chroma sample may be in the next band.
  const int beyond = higher_ > 1 && count_ == 3 ? 1 : 0;
  return {std::max(y - beyond, 0) >> luma.band_bits,
          std::min(y + beyond, luma.height - 1) >> luma.band_bits};
}

void WindowRows::convert(int y, uint8_t* out) {
  y += window_.y;
  const auto width = static_cast<size_t>(window_.width);
  const uint8_t* luma = planes_[0].row(y) + (window_.x - planes_[0].first_column);
  if (count_ == 1) {
    kernels_.grey_to_rgbx(luma, width, out);
    return;
  }
  const uint8_t* cb = chroma_row(planes_[1], y, chroma_[0].data());
  const uint8_t* cr = chroma_row(planes_[2], y, chroma_[1].data());
  kernels_.to_rgbx(luma, cb, cr, width, out);
}

void WindowRows::release_large_buffers() {
  for (Plane& plane : planes_)
    if (plane.samples.size() > largest_kept_buffer) std::vector<uint8_t>().swap(plane.samples);
}

}  // namespace fusionloader
