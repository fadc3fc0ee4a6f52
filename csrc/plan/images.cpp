#include "plan/images.hpp"

#include <cstring>

namespace fusionloader {

bool PixelSource::begin(Rect window) {
  window_ = window;
  const size_t needed = rows_at_once * (static_cast<size_t>(window.width) * 4 + row_slack);
  if (buffer_.size() < needed) buffer_.resize(needed);
  return true;
}

bool PixelSource::rows(int y, int count, const uint8_t** rows) {
  const auto width = static_cast<size_t>(window_.width);
  for (int i = 0; i < count; ++i) {
    const uint8_t* from = image_.pixels + (window_.y + y + i) * image_.stride +
                          static_cast<ptrdiff_t>(window_.x) * image_.channels;
    uint8_t* to = &buffer_[static_cast<size_t>(i) * (width * 4 + row_slack)];
    if (image_.channels == 1)
      kernels_.join_rgbx(from, from, from, width, to);
    else if (image_.channels == 4)
      std::memcpy(to, from, width * 4);
    else
      kernels_.spread_rgb(from, width, to);
    rows[i] = to;
  }
  return true;
}

bool PlanesSource::begin(Rect window) {
  window_ = window;
  const size_t needed = rows_at_once * (static_cast<size_t>(window.width) * 4 + row_slack);
  if (buffer_.size() < needed) buffer_.resize(needed);
  return true;
}

bool PlanesSource::rows(int y, int count, const uint8_t** rows) {
  const auto width = static_cast<size_t>(window_.width);
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(window_.y + y + i) * static_cast<size_t>(image_.width()) +
                      static_cast<size_t>(window_.x);
    uint8_t* to = &buffer_[static_cast<size_t>(i) * (width * 4 + row_slack)];
    const uint8_t* red = image_.plane(0) + at;
    const uint8_t* green = image_.plane(image_.channels() / 3) + at;
    const uint8_t* blue = image_.plane(image_.channels() / 3 * 2) + at;
    kernels_.join_rgbx(red, green, blue, width, to);
    rows[i] = to;
  }
  return true;
}

void PlanesSink::row(int y, const uint8_t* planes, size_t plane) {
  const auto width = static_cast<size_t>(image_.width());
  for (int channel = 0; channel < image_.channels(); ++channel)
    std::memcpy(image_.plane(channel) + static_cast<size_t>(y) * width,
                planes + static_cast<size_t>(channel) * plane, width);
}

void StoredImage::resize(int width, int height) {
  width_ = width;
  height_ = height;
  const size_t needed = static_cast<size_t>(width) * static_cast<size_t>(height) * 4 + row_slack;
  if (pixels_.size() < needed) pixels_.resize(needed);
}

void StoredImage::row(int y, const uint8_t* planes, size_t plane) {
  kernels_.join_rgbx(planes, planes + plane, planes + 2 * plane, static_cast<size_t>(width_),
                     at(0, y));
}

bool StoredImage::begin(Rect window) {
  window_ = window;
  return true;
}

bool StoredImage::rows(int y, int count, const uint8_t** rows) {
  for (int i = 0; i < count; ++i) rows[i] = at(window_.x, window_.y + y + i);
  return true;
}

void PixelSink::row(int y, const uint8_t* planes, size_t plane) {
  uint8_t* to = out_ + static_cast<size_t>(y) * width_ * channels_;
  if (channels_ == 1)
    std::memcpy(to, planes, width_);
  else
    kernels_.join_rgb(planes, planes + plane, planes + 2 * plane, width_, to);
}

bool PixelSink::pixels(int y, const uint8_t* row) {
  if (channels_ == 1) return false;
  uint8_t* to = out_ + static_cast<size_t>(y) * width_ * channels_;
  kernels_.pack_rgb(row, width_, to);
  return true;
}

}  // namespace fusionloader
