#pragma once
// The passes of resampler.hpp on float32 pixels, with torch's antialiased resize; row by row.
#include <vector>

#include "resize/float_rows.hpp"
#include "resize/resampler.hpp"

namespace fusionloader {

// Gives rows of float32 pixels, four floats each.
class FloatSource {
 public:
  virtual ~FloatSource() = default;
  // Says which window will be read; false when it cannot be.
  virtual bool begin(Rect window) = 0;
  // Rows y .. y + count - 1 of the window, count <= rows_at_once, valid until the next call; `y`
  // ascending. False when they cannot be read.
  virtual bool rows(int y, int count, const float** rows) = 0;
};

class FloatSink {
 public:
  virtual ~FloatSink() = default;
  // Every row comes once, in any order, and may be changed.
  virtual void row(int y, float* pixels) = 0;
};

// The rows of a source of levels as floats.
class FloatsOfLevels final : public FloatSource {
 public:
  // `tables` has 256 floats for each of 1 or 3 channels. The image begins at (x, y) of the source.
  FloatsOfLevels(RowSource& source, const std::vector<float>& tables, int x, int y)
      : source_(source), x_(x), y_(y) {
    for (size_t channel = 0; channel < 3; ++channel)
      tables_[channel] = &tables[tables.size() > 256 ? 256 * channel : 0];
  }
  bool begin(Rect window) override;
  bool rows(int y, int count, const float** rows) override;

 private:
  RowSource& source_;
  int x_, y_;
  size_t width_ = 0;
  const float* tables_[3];
  std::vector<float> buffer_;
};

// An image between two passes.
class FloatImage final : public FloatSource, public FloatSink {
 public:
  void resize(int width, int height);
  void release() { std::vector<float>().swap(pixels_); }
  size_t bytes() const { return pixels_.size() * sizeof(float); }

  // The same of 1 or 3 planes, one after the other.
  void take_planes(const float* planes, size_t channels, size_t pixels);

  void row(int y, float* pixels) override;
  bool begin(Rect window) override;
  bool rows(int y, int count, const float** rows) override;

 private:
  size_t width_ = 0;
  Rect window_{};
  std::vector<float> pixels_;
};

// Rows go to planes, one after the other.
class PlanarFloats final : public FloatSink {
 public:
  PlanarFloats(float* out, size_t channels, int width, int height, SimdLevel simd)
      : out_(out),
        channels_(channels),
        width_(static_cast<size_t>(width)),
        plane_(width_ * static_cast<size_t>(height)),
        simd_(simd) {}
  void row(int y, float* pixels) override {
    float* row = out_ + static_cast<size_t>(y) * width_;
    split_channels(simd_, pixels, width_, channels_, row, plane_);
  }

 private:
  float* out_;
  size_t channels_, width_, plane_;
  SimdLevel simd_;
};

class FloatResampler {
 public:
  explicit FloatResampler(SimdLevel simd) : simd_(simd) {}

  // What a pass reads of its source. Throws std::invalid_argument for a pass that is not one for
  // floats.
  Rect needed(const Pass& pass);
  // False as soon as the source fails. Throws like needed().
  bool run(const Pass& pass, FloatSource& source, FloatSink& sink);

  void release_large_buffers();

 private:
  bool resize_rows(FloatSource& source, int count);
  bool make_row(FloatSource& source, int row, float* to);
  float* ring_row(int y) { return &ring_[static_cast<size_t>(y) % ring_rows_ * stride_]; }

  SimdLevel simd_;
  FloatWeights across_, down_;

  // Of the pass under way.
  bool resize_x_ = false, resize_y_ = false, mirrored_ = false;
  Rect inner_{};  // real pixels in the result
  Rect read_{};
  int ready_ = 0;  // rows of the window that are resized across
  size_t ring_rows_ = 0, stride_ = 0;
  // Rows that are resized across and still needed; the row that is made.
  std::vector<float> ring_, framed_;
  std::vector<const float*> rows_;
};

}  // namespace fusionloader
