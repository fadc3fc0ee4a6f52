// Arithmetic of Pillow's src/libImaging/Reduce.c: sums of levels plus half of their count, times a
// rounded reciprocal with 24 fractional bits. Its functions for small rectangles give the same.
#include "resize/reducing.hpp"

#include <algorithm>
#include <cstring>

#include "ops/limits.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

using Pixel = uint32_t __attribute__((vector_size(16)));  // the sums of four channels

template <int>
FUSIONLOADER_INLINE void set_loop(const uint8_t* row, size_t count, uint32_t* sums) {
  for (size_t i = 0; i < count; ++i) sums[i] = row[i];
}

template <int>
FUSIONLOADER_INLINE void add_loop(const uint8_t* row, size_t count, uint32_t* sums) {
  for (size_t i = 0; i < count; ++i) sums[i] += row[i];
}

// In place: what is read lies behind what is written.
template <int>
FUSIONLOADER_INLINE void join_loop(uint32_t* sums, size_t outputs, size_t columns) {
  const uint32_t* from = sums;
  for (size_t x = 0; x < outputs; ++x, sums += 4) {
    Pixel sum, next;
    std::memcpy(&sum, from, sizeof sum);
    from += 4;
    for (size_t column = 1; column < columns; ++column, from += 4) {
      std::memcpy(&next, from, sizeof next);
      sum += next;
    }
    std::memcpy(sums, &sum, sizeof sum);
  }
}

template <int>
FUSIONLOADER_INLINE void divide_loop(const uint32_t* sums, size_t count, uint32_t half,
                                     uint32_t reciprocal, uint8_t* to) {
  for (size_t i = 0; i < count; ++i)
    to[i] = static_cast<uint8_t>((sums[i] + half) * reciprocal >> 24);
}

FUSIONLOADER_PER_LEVEL(set_row, set_loop)
FUSIONLOADER_PER_LEVEL(add_row, add_loop)
FUSIONLOADER_PER_LEVEL(join_columns, join_loop)
FUSIONLOADER_PER_LEVEL(divide_sums, divide_loop)

// Pillow divides in single precision.
uint32_t reciprocal_of(size_t count) {
  return static_cast<uint32_t>(4294967296.0f / static_cast<float>(count << 8));
}

}  // namespace

void ReducingSource::reduce(RowSource& source, Rect window, int columns, int rows) {
  source_ = &source;
  window_ = window;
  columns_ = columns;
  rows_ = rows;
}

bool ReducingSource::begin(Rect window) {
  const int x = window.x * columns_, y = window.y * rows_;
  read_ = {window_.x + x, window_.y + y, std::min(window.width * columns_, window_.width - x),
           std::min(window.height * rows_, window_.height - y)};
  sums_.resize(static_cast<size_t>(read_.width) * 4);
  stride_ = static_cast<size_t>(window.width) * 4 + row_slack;
  buffer_.resize(stride_ * rows_at_once);
  return source_->begin(read_);
}

bool ReducingSource::rows(int y, int count, const uint8_t** rows) {
  for (int i = 0; i < count; ++i) {
    const int first = (y + i) * rows_, summed = std::min(rows_, read_.height - first);
    if (!add_up(first, summed)) return false;
    uint8_t* to = &buffer_[static_cast<size_t>(i) * stride_];
    divide(summed, to);
    rows[i] = to;
  }
  return true;
}

bool ReducingSource::add_up(int first, int count) {
  const uint8_t* from[rows_at_once];
  for (int done = 0; done < count; done += rows_at_once) {
    const int next = std::min(rows_at_once, count - done);
    if (!source_->rows(first + done, next, from)) return false;
    for (int i = 0; i < next; ++i) {
      if (done + i == 0)
        set_row(level_, from[i], sums_.size(), sums_.data());
      else
        add_row(level_, from[i], sums_.size(), sums_.data());
    }
  }
  return true;
}

void ReducingSource::divide(int rows, uint8_t* to) {
  const auto columns = static_cast<size_t>(columns_);
  const size_t width = sums_.size() / 4, whole = width / columns;
  const auto divide_by = [&](size_t first, size_t outputs, size_t wide) {
    uint32_t* sums = sums_.data() + first * columns * 4;
    const size_t count = wide * static_cast<size_t>(rows);
    if (wide > 1) join_columns(level_, sums, outputs, wide);
    divide_sums(level_, sums, outputs * 4, static_cast<uint32_t>(count / 2), reciprocal_of(count),
                to + first * 4);
  };
  divide_by(0, whole, columns);
  if (width % columns != 0) divide_by(whole, 1, width % columns);
}

void ReducingSource::release_large_buffers() {
  if (buffer_.size() + sums_.size() * sizeof(uint32_t) <= largest_kept_buffer) return;
  std::vector<uint8_t>().swap(buffer_);
  std::vector<uint32_t>().swap(sums_);
}

}  // namespace fusionloader
