#pragma once
// Where passes read their rows from and write them to.
#include <vector>

#include "image/decoder.hpp"
#include "ops/interleave.hpp"
#include "ops/planes.hpp"
#include "resize/resampler.hpp"

namespace fusionloader {

class DecodedSource final : public RowSource {
 public:
  DecodedSource(ImageDecoder& decoder, int denominator, EntryIndex index)
      : decoder_(decoder), denominator_(denominator), index_(index) {}
  bool begin(Rect window) override { return decoder_.start(window, denominator_, index_); }
  bool rows(int y, int count, const uint8_t** rows) override {
    return decoder_.rows(y, count, rows);
  }

 private:
  ImageDecoder& decoder_;
  int denominator_;
  EntryIndex index_;
};

// 8-bit pixels of `channels` bytes: 4 (RGBX), 3 (RGB) or 1 (grey); rows `stride` bytes apart.
struct PixelView {
  const uint8_t* pixels;
  int width, height, channels;
  ptrdiff_t stride;
};

class PixelSource final : public RowSource {
 public:
  PixelSource(const PixelView& image, std::vector<uint8_t>& buffer, SimdLevel simd)
      : image_(image), buffer_(buffer), kernels_(interleave_kernels(simd)) {}
  bool begin(Rect window) override;
  bool rows(int y, int count, const uint8_t** rows) override;

 private:
  PixelView image_;
  std::vector<uint8_t>& buffer_;
  const InterleaveKernels& kernels_;
  Rect window_{};
};

// Planes of whatever number of channels, read by a pass.
class PlanesSource final : public RowSource {
 public:
  PlanesSource(const Planes& image, std::vector<uint8_t>& buffer, SimdLevel simd)
      : image_(image), buffer_(buffer), kernels_(interleave_kernels(simd)) {}
  bool begin(Rect window) override;
  bool rows(int y, int count, const uint8_t** rows) override;

 private:
  const Planes& image_;
  std::vector<uint8_t>& buffer_;
  const InterleaveKernels& kernels_;
  Rect window_{};
};

// Planes written by a pass; the first `channels` of its three.
class PlanesSink final : public RowSink {
 public:
  PlanesSink(Planes& image, int channels, int width, int height) : image_(image) {
    image.reset(channels, width, height);
  }
  void row(int y, const uint8_t* planes, size_t plane) override;

 private:
  Planes& image_;
};

// The image between two passes: written by one, read by the next.
class StoredImage final : public RowSource, public RowSink {
 public:
  explicit StoredImage(SimdLevel simd) : kernels_(interleave_kernels(simd)) {}
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

  const InterleaveKernels& kernels_;
  int width_ = 0, height_ = 0;
  Rect window_{};
  std::vector<uint8_t> pixels_;
};

// Height x width x channels, 8 bit.
class PixelSink final : public RowSink {
 public:
  PixelSink(uint8_t* out, int width, int channels, SimdLevel simd)
      : out_(out),
        width_(static_cast<size_t>(width)),
        channels_(static_cast<size_t>(channels)),
        kernels_(interleave_kernels(simd)) {}
  void row(int y, const uint8_t* planes, size_t plane) override;
  bool pixels(int y, const uint8_t* row) override;

 private:
  uint8_t* out_;
  size_t width_, channels_;
  const InterleaveKernels& kernels_;
};

}  // namespace fusionloader
