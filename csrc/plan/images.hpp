#pragma once
// Where passes read their rows from and write them to.
#include <vector>

#include "jpeg/region_decoder.hpp"
#include "resize/resampler.hpp"

namespace fusionloader {

class JpegSource final : public RowSource {
 public:
  JpegSource(RegionDecoder& decoder, int denominator)
      : decoder_(decoder), denominator_(denominator) {}
  bool begin(Rect window) override { return decoder_.start(window, denominator_); }
  bool rows(int y, int count, const uint8_t** rows) override {
    return decoder_.rows(y, count, rows);
  }

 private:
  RegionDecoder& decoder_;
  int denominator_;
};

// Decoded pixels: rows of RGB `stride` bytes apart.
class PixelSource final : public RowSource {
 public:
  PixelSource(const uint8_t* rgb, ptrdiff_t stride, std::vector<uint8_t>& buffer)
      : rgb_(rgb), stride_(stride), buffer_(buffer) {}
  bool begin(Rect window) override;
  bool rows(int y, int count, const uint8_t** rows) override;

 private:
  const uint8_t* rgb_;
  ptrdiff_t stride_;
  std::vector<uint8_t>& buffer_;
  Rect window_{};
};

// The image between two passes: written by one, read by the next.
class StoredImage final : public RowSource, public RowSink {
 public:
  void resize(int width, int height);
  int width() const { return width_; }
  int height() const { return height_; }
  void release() { std::vector<uint8_t>().swap(pixels_); }
  size_t bytes() const { return pixels_.size(); }

  void row(int y, const uint8_t* planes, size_t plane) override;
  bool begin(Rect window) override;
  bool rows(int y, int count, const uint8_t** rows) override;

 private:
  uint8_t* at(int x, int y) {
    return &pixels_[(static_cast<size_t>(y) * static_cast<size_t>(width_) +
                     static_cast<size_t>(x)) *
                    4];
  }

  int width_ = 0, height_ = 0;
  Rect window_{};
  std::vector<uint8_t> pixels_;
};

// Height x width x 3, 8 bit.
class PixelSink final : public RowSink {
 public:
  PixelSink(uint8_t* out, int width) : out_(out), width_(static_cast<size_t>(width)) {}
  void row(int y, const uint8_t* planes, size_t plane) override;

 private:
  uint8_t* out_;
  size_t width_;
};

}  // namespace fusionloader
