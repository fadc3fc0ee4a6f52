#include "resize/resampler.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr size_t largest_ring = size_t{2} << 30;

// Where [begin, begin + size) of the unshrunk image lies in the shrunk one: whole pixels around it,
// and its exact bounds inside those.
Axis source_axis(int begin, int size, int denominator, int source_size, int& first) {
  const double exact_begin = static_cast<double>(begin) / denominator;
  const double exact_end = static_cast<double>(begin + size) / denominator;
  first = begin / denominator;
  const int end = std::min((begin + size + denominator - 1) / denominator, source_size);
  Axis axis{};
  axis.in_size = end - first;
  axis.in_begin = exact_begin - first;
  axis.in_length = std::min(exact_end - first, static_cast<double>(axis.in_size)) - axis.in_begin;
  return axis;
}

bool changes(const Axis& axis) {
  return axis.in_size != axis.out_size || axis.in_begin != 0 || axis.in_length != axis.out_size;
}

// What Pillow computes in single precision of a box.
void take_part(Axis& axis, float begin, float end) {
  axis.in_begin = begin;
  axis.in_length = end - begin;
}

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Resampler::Resampler(SimdLevel simd, VerticalFirst vertical_first)
    : kernels_(resize_kernels(simd)),
      interleave_(interleave_kernels(simd)),
      vertical_first_(vertical_first),
      reducing_(simd) {}

bool Resampler::run(const Pass& pass, int denominator, int source_width, int source_height,
                    RowSource& source, RowSink& sink) {
  pass_ = &pass;
  sink_ = &sink;
  if (denominator != 1 && (pass.is_reduced() || pass.box))
    throw std::logic_error("a shrunk image cannot be reduced");
  Rect region{}, window = pass.window;
  if (pass.is_reduced()) {
    reducing_.reduce(source, window, pass.columns, pass.rows);
    source_width = divide_up(window.width, pass.columns);
    source_height = divide_up(window.height, pass.rows);
    window = {0, 0, source_width, source_height};
  }
  RowSource& rows = pass.is_reduced() ? reducing_ : source;
  Axis x = source_axis(window.x, window.width, denominator, source_width, region.x);
  Axis y = source_axis(window.y, window.height, denominator, source_height, region.y);
  if (pass.box) {
    take_part(x, pass.box->left, pass.box->right);
    take_part(y, pass.box->top, pass.box->bottom);
  }
  x.out_size = pass.resized ? pass.resized_width : x.in_size;
  y.out_size = pass.resized ? pass.resized_height : y.in_size;
  resize_x_ = pass.resized && changes(x);
  resize_y_ = pass.resized && changes(y);

  const Rect& kept = pass.kept;
  x.keep_begin = std::clamp(kept.x, 0, x.out_size);
  y.keep_begin = std::clamp(kept.y, 0, y.out_size);
  inner_width_ = std::clamp(kept.x + kept.width, 0, x.out_size) - x.keep_begin;
  inner_height_ = std::clamp(kept.y + kept.height, 0, y.out_size) - y.keep_begin;
  if (inner_width_ == 0) inner_height_ = 0;
  x.keep_count = inner_width_;
  y.keep_count = inner_height_;
  x.mirrored = pass.mirrored;
  inner_x_ = x.keep_begin - kept.x;
  inner_y_ = y.keep_begin - kept.y;
  if (pass.mirrored) inner_x_ = kept.width - inner_x_ - inner_width_;
  emit_surroundings();
  if (inner_height_ == 0) return true;

  if (resize_x_)
    x_weights_.compute(pass.filter, x);
  else
    x_weights_.compute_identity(x);
  if (resize_y_)
    y_weights_.compute(pass.filter, y);
  else
    y_weights_.compute_identity(y);
  source_columns_ = static_cast<size_t>(x_weights_.inputs_end() - x_weights_.inputs_begin());
  region.x += x_weights_.inputs_begin();
  region.width = static_cast<int>(source_columns_);
  region.y += y_weights_.inputs_begin();
  region.height = y_weights_.inputs_end() - y_weights_.inputs_begin();
  if (resize_x_) kernels_.prepare(x_weights_, x_weights_.inputs_begin(), x_taps_);

  plane_ = round_up(static_cast<size_t>(inner_width_), 32);
  grow(planes_, 3 * plane_ + row_slack);
  if (!rows.begin(region)) return false;
  const bool vertical_first =
      resize_x_ && resize_y_ && is_vertical_first(vertical_first_, pass.filter, x, y);
  if (!resize_x_ && !resize_y_ && !pass.mirrored) return emit_as_is(rows);
  return vertical_first ? columns_first(rows) : rows_first(rows);
}

void Resampler::size_ring(size_t row_bytes) {
  int rows = 1;
  while (rows < y_weights_.most_taps() + rows_at_once - 1) rows *= 2;
  ring_mask_ = rows - 1;
  ring_stride_ = round_up(row_bytes, 64);
  if (static_cast<size_t>(rows) * ring_stride_ > largest_ring)
    throw std::invalid_argument("an image of that shape cannot be resized to that size");
  grow(ring_, static_cast<size_t>(rows) * ring_stride_ + row_slack);
  ring_rows_.resize(static_cast<size_t>(rows));
}

// Source rows `ready` and on, resized horizontally, into the ring.
bool Resampler::resize_rows(RowSource& source, int ready, int count) {
  const uint8_t* from[rows_at_once];
  uint8_t* to[rows_at_once];
  if (!source.rows(ready - y_weights_.inputs_begin(), count, from)) return false;
  for (int i = 0; i < rows_at_once; ++i) to[i] = ring_row(ready + i);
  if (resize_x_) {
    // Past the last row the last is done again, into rows of the ring that nobody will read.
    for (int i = count; i < rows_at_once; ++i) from[i] = from[count - 1];
    kernels_.horizontal(from, x_taps_, to);
    return true;
  }
  for (int i = 0; i < count; ++i) {
    if (pass_->mirrored)
      interleave_.mirror(from[i], source_columns_, to[i]);
    else
      std::memcpy(to[i], from[i], source_columns_ * 4);
  }
  return true;
}

void Resampler::resize_column_step(int y, uint8_t* out, size_t bytes) {
  const int first = y_weights_.first(y), count = y_weights_.count(y);
  for (int t = 0; t < count; ++t) ring_rows_[static_cast<size_t>(t)] = ring_row(first + t);
  kernels_.vertical(ring_rows_.data(), y_weights_.taps(y), count, out, bytes);
}

bool Resampler::rows_first(RowSource& source) {
  const size_t bytes = static_cast<size_t>(inner_width_) * 4;
  size_ring(round_up(bytes, 16));
  grow(result_rows_, bytes + row_slack);
  int ready = y_weights_.inputs_begin();
  for (int y = 0; y < inner_height_; ++y) {
    const int first = y_weights_.first(y), end = first + y_weights_.count(y);
    ready = std::max(ready, first);
    while (ready < end) {
      const int count = std::min(rows_at_once, y_weights_.inputs_end() - ready);
      if (!resize_rows(source, ready, count)) return false;
      ready += count;
    }
    if (resize_y_) {
      resize_column_step(y, result_rows_.data(), bytes);
      emit(y, result_rows_.data());
    } else {
      emit(y, ring_row(first));
    }
  }
  return true;
}

// Rows that are neither resized nor mirrored.
bool Resampler::emit_as_is(RowSource& source) {
  const uint8_t* rows[rows_at_once];
  for (int y = 0; y < inner_height_; y += rows_at_once) {
    const int count = std::min(rows_at_once, inner_height_ - y);
    if (!source.rows(y, count, rows)) return false;
    for (int i = 0; i < count; ++i) emit(y + i, rows[i]);
  }
  return true;
}

bool Resampler::columns_first(RowSource& source) {
  const size_t bytes = source_columns_ * 4;
  size_ring(bytes);
  const size_t tall_stride = round_up(bytes, 64) + row_slack;
  const size_t result_stride = round_up(static_cast<size_t>(inner_width_) * 4, 64);
  grow(tall_rows_, rows_at_once * tall_stride);
  grow(result_rows_, rows_at_once * result_stride + row_slack);
  const uint8_t* tall[rows_at_once];
  uint8_t* results[rows_at_once];
  for (size_t i = 0; i < rows_at_once; ++i) {
    tall[i] = &tall_rows_[i * tall_stride];
    results[i] = &result_rows_[i * result_stride];
  }
  const int top = y_weights_.inputs_begin();
  int ready = top;
  for (int y = 0; y < inner_height_; y += rows_at_once) {
    const int count = std::min(rows_at_once, inner_height_ - y);
    for (int i = 0; i < count; ++i) {
      const int first = y_weights_.first(y + i), end = first + y_weights_.count(y + i);
      for (ready = std::max(ready, first); ready < end; ++ready) {
        const uint8_t* row;
        if (!source.rows(ready - top, 1, &row)) return false;
        std::memcpy(ring_row(ready), row, bytes);
      }
      resize_column_step(y + i, &tall_rows_[static_cast<size_t>(i) * tall_stride], bytes);
    }
    // Rows past the last are whatever was there before; their results are dropped.
    kernels_.horizontal(tall, x_taps_, results);
    for (int i = 0; i < count; ++i) emit(y + i, results[i]);
  }
  return true;
}

void Resampler::emit(int row, const uint8_t* pixels) {
  const Rect& kept = pass_->kept;
  const int y = inner_y_ + row;
  const int target = pass_->upside_down ? kept.height - 1 - y : y;
  if (inner_width_ == kept.width && sink_->pixels(target, pixels)) return;
  kernels_.split(pixels, static_cast<size_t>(inner_width_), planes_.data(), plane_);
  if (inner_width_ == kept.width) return sink_->row(target, planes_.data(), plane_);
  for (size_t channel = 0; channel < 3; ++channel)
    std::memcpy(&framed_[channel * framed_plane_ + static_cast<size_t>(inner_x_)],
                &planes_[channel * plane_], static_cast<size_t>(inner_width_));
  sink_->row(target, framed_.data(), framed_plane_);
}

void Resampler::emit_surroundings() {
  const Rect& kept = pass_->kept;
  if (inner_width_ == kept.width && inner_height_ == kept.height) return;
  framed_plane_ = round_up(static_cast<size_t>(kept.width), 32);
  grow(framed_, 3 * framed_plane_ + row_slack);
  for (size_t channel = 0; channel < 3; ++channel)
    std::memset(&framed_[channel * framed_plane_], pass_->fill[channel], framed_plane_);
  for (int y = 0; y < kept.height; ++y) {
    if (y >= inner_y_ && y < inner_y_ + inner_height_) continue;
    sink_->row(pass_->upside_down ? kept.height - 1 - y : y, framed_.data(), framed_plane_);
  }
}

void Resampler::release_large_buffers() {
  for (std::vector<uint8_t>* buffer : {&ring_, &tall_rows_, &result_rows_, &planes_, &framed_})
    if (buffer->size() > largest_kept_buffer) std::vector<uint8_t>().swap(*buffer);
  reducing_.release_large_buffers();
}

}  // namespace fusionloader
