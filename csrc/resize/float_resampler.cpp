#include "resize/float_resampler.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr size_t largest_ring = size_t{2} << 30;
constexpr size_t slack = 16;  // floats that a vector may take past a row

size_t floats_of(int pixels) { return static_cast<size_t>(pixels) * floats_per_pixel; }

}  // namespace

bool FloatsOfLevels::begin(Rect window) {
  width_ = static_cast<size_t>(window.width);
  grow(buffer_, rows_at_once * floats_of(window.width));
  return source_.begin({x_ + window.x, y_ + window.y, window.width, window.height});
}

bool FloatsOfLevels::rows(int y, int count, const float** rows) {
  const uint8_t* levels[rows_at_once];
  if (!source_.rows(y, count, levels)) return false;
  for (int i = 0; i < count; ++i) {
    float* to = &buffer_[static_cast<size_t>(i) * width_ * floats_per_pixel];
    look_up_floats(levels[i], width_, tables_, to);
    rows[i] = to;
  }
  return true;
}

void FloatImage::resize(int width, int height) {
  width_ = floats_of(width);
  grow(pixels_, width_ * static_cast<size_t>(height) + slack);
}

void FloatImage::take_planes(const float* planes, size_t channels, size_t pixels) {
  float* to = pixels_.data();
  const size_t plane = channels == 3 ? pixels : 0;
  for (size_t i = 0; i < pixels; ++i, to += floats_per_pixel) {
    for (size_t channel = 0; channel < 3; ++channel) to[channel] = planes[channel * plane + i];
    to[3] = 0.0f;
  }
}

void FloatImage::row(int y, float* pixels) {
  std::memcpy(&pixels_[static_cast<size_t>(y) * width_], pixels, width_ * sizeof(float));
}

bool FloatImage::begin(Rect window) {
  window_ = window;
  return true;
}

bool FloatImage::rows(int y, int count, const float** rows) {
  for (int i = 0; i < count; ++i)
    rows[i] = &pixels_[static_cast<size_t>(window_.y + y + i) * width_ + floats_of(window_.x)];
  return true;
}

Rect FloatResampler::needed(const Pass& pass) {
  if (pass.is_reduced() || pass.box)
    throw std::invalid_argument("floats are neither reduced nor resized from a box");
  const Rect &kept = pass.kept, &window = pass.window;
  resize_x_ = pass.resized && window.width != pass.resized_width;
  resize_y_ = pass.resized && window.height != pass.resized_height;
  mirrored_ = pass.mirrored;
  const int left = std::clamp(kept.x, 0, pass.resized_width);
  const int top = std::clamp(kept.y, 0, pass.resized_height);
  const int right = std::clamp(kept.x + kept.width, 0, pass.resized_width);
  const int bottom = std::clamp(kept.y + kept.height, 0, pass.resized_height);
  inner_ = {left - kept.x, top - kept.y, right - left, bottom - top};
  if (inner_.width == 0 || inner_.height == 0) inner_.width = inner_.height = 0;
  if (mirrored_) inner_.x = kept.width - inner_.x - inner_.width;
  read_ = {left, top, inner_.width, inner_.height};
  if (inner_.width == 0) return {};
  if (resize_x_) {
    across_.compute(pass.filter, window.width, pass.resized_width, left, inner_.width, mirrored_);
    read_.x = across_.inputs_begin();
    read_.width = across_.inputs_end() - read_.x;
  }
  if (resize_y_) {
    down_.compute(pass.filter, window.height, pass.resized_height, top, inner_.height, false);
    read_.y = down_.inputs_begin();
    read_.height = down_.inputs_end() - read_.y;
  }
  return {window.x + read_.x, window.y + read_.y, read_.width, read_.height};
}

// Rows `ready_` and on of the window, resized across, into the ring.
bool FloatResampler::resize_rows(FloatSource& source, int count) {
  const float* from[rows_at_once];
  float* to[rows_at_once];
  if (!source.rows(ready_, count, from)) return false;
  for (int i = 0; i < rows_at_once; ++i) to[i] = ring_row(ready_ + i);
  if (resize_x_) {
    // Past the last row the last is done again, into rows of the ring that nobody will read.
    for (int i = count; i < rows_at_once; ++i) from[i] = from[count - 1];
    weigh_columns(simd_, from, across_, to);
    return true;
  }
  const size_t floats = floats_of(inner_.width), pixel = floats_per_pixel * sizeof(float);
  for (int i = 0; i < count; ++i) {
    if (!mirrored_) std::memcpy(to[i], from[i], floats * sizeof(float));
    for (size_t x = 0; mirrored_ && x < floats; x += floats_per_pixel)
      std::memcpy(to[i] + floats - floats_per_pixel - x, from[i] + x, pixel);
  }
  return true;
}

// Row `row` of those that are real.
bool FloatResampler::make_row(FloatSource& source, int row, float* to) {
  const int first = resize_y_ ? down_.first(row) - read_.y : row;
  const int count = resize_y_ ? down_.count(row) : 1;
  ready_ = std::max(ready_, first);
  while (ready_ < first + count) {
    const int taken = std::min(rows_at_once, read_.height - ready_);
    if (!resize_rows(source, taken)) return false;
    ready_ += taken;
  }
  const size_t floats = floats_of(inner_.width);
  if (resize_y_) {
    for (int t = 0; t < count; ++t) rows_[static_cast<size_t>(t)] = ring_row(first + t);
    weigh_rows(simd_, rows_.data(), down_.taps(row), count, to, floats);
  } else {
    std::memcpy(to, ring_row(first), floats * sizeof(float));
  }
  return true;
}

bool FloatResampler::run(const Pass& pass, FloatSource& source, FloatSink& sink) {
  const Rect region = needed(pass), &kept = pass.kept;
  if (inner_.width > 0 && !source.begin(region)) return false;
  stride_ = floats_of(inner_.width) + slack;
  ready_ = 0;
  const int most_taps = resize_y_ && inner_.width > 0 ? down_.most_taps() : 1;
  ring_rows_ = static_cast<size_t>(most_taps + rows_at_once - 1);
  if (ring_rows_ * stride_ * sizeof(float) > largest_ring)
    throw std::invalid_argument("an image of that shape cannot be resized to that size");
  grow(ring_, ring_rows_ * stride_);
  rows_.resize(ring_rows_);
  grow(framed_, floats_of(kept.width) + slack);
  FloatPixel fill{};
  for (size_t channel = 0; channel < 3; ++channel) fill[channel] = pass.fill[channel];
  for (int y = 0; y < kept.height; ++y) {
    const int row = y - inner_.y;
    const bool is_inside = row >= 0 && row < inner_.height;
    if (!is_inside || inner_.width < kept.width)
      for (size_t x = 0; x < floats_of(kept.width); x += floats_per_pixel)
        std::memcpy(&framed_[x], fill.data(), sizeof fill);
    if (is_inside) {
      // A vector may write past the row: what lies there is filled again.
      if (!make_row(source, row, &framed_[floats_of(inner_.x)])) return false;
      for (int x = inner_.x + inner_.width; x < std::min(kept.width, inner_.x + inner_.width + 4);
           ++x)
        std::memcpy(&framed_[floats_of(x)], fill.data(), sizeof fill);
    }
    sink.row(pass.upside_down ? kept.height - 1 - y : y, framed_.data());
  }
  return true;
}

void FloatResampler::release_large_buffers() {
  for (std::vector<float>* buffer : {&ring_, &framed_})
    if (buffer->size() * sizeof(float) > largest_kept_buffer) std::vector<float>().swap(*buffer);
}

}  // namespace fusionloader
