#include "resize/tensor_resize.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "ops/interleave.hpp"
#include "ops/limits.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

template <int>
FUSIONLOADER_INLINE void join_loop(const float* __restrict first, const float* __restrict second,
                                   const float* __restrict third, const float* __restrict fourth,
                                   size_t width, float* __restrict out) {
  for (size_t x = 0; x < width; ++x) {
    out[4 * x] = first[x];
    out[4 * x + 1] = second[x];
    out[4 * x + 2] = third[x];
    out[4 * x + 3] = fourth[x];
  }
}

FUSIONLOADER_PER_LEVEL(join_planes, join_loop)

// What is resized together: planes that become the channels of pixels of four elements.
template <class Element>
struct Ways;

template <>
struct Ways<float> {
  using Source = FloatSource;
  static constexpr size_t most_planes = floats_per_pixel;
  explicit Ways(SimdLevel level) : simd(level) {}

  void join(const float* const* planes, size_t width, float* to) const {
    join_planes(simd, planes[0], planes[1], planes[2], planes[3], width, to);
  }
  // Takes the first float of the next pixel with each but the last.
  void spread(const float* from, size_t width, float* to) const {
    for (size_t x = 0; x + 1 < width; ++x)
      std::memcpy(to + 4 * x, from + 3 * x, sizeof(FloatPixel));
    std::memcpy(to + 4 * (width - 1), from + 3 * (width - 1), 3 * sizeof(float));
  }

  SimdLevel simd;
};

template <>
struct Ways<uint8_t> {
  using Source = RowSource;
  static constexpr size_t most_planes = 3;
  explicit Ways(SimdLevel level) : kernels(interleave_kernels(level)) {}

  void join(const uint8_t* const* planes, size_t width, uint8_t* to) const {
    kernels.join_rgbx(planes[0], planes[1], planes[2], width, to);
  }
  void spread(const uint8_t* from, size_t width, uint8_t* to) const {
    kernels.spread_rgb(from, width, to);
  }

  const InterleaveKernels& kernels;
};

// The rows of some planes, or of an interleaved image.
template <class Element>
class PlaneRows final : public Ways<Element>::Source {
 public:
  PlaneRows(SimdLevel simd, ptrdiff_t row_step, bool interleaved)
      : ways_(simd), row_step_(row_step), interleaved_(interleaved) {}

  // Sets the plane, and those behind it to the same.
  void set_plane(size_t at, const Element* plane) {
    for (; at < Ways<Element>::most_planes; ++at) planes_[at] = plane;
  }
  bool begin(Rect window) override {
    window_ = window;
    stride_ = static_cast<size_t>(window.width) * 4 + row_slack;
    if (buffer_.size() < rows_at_once * stride_) buffer_.resize(rows_at_once * stride_);
    return true;
  }
  bool rows(int y, int count, const Element** rows) override {
    const auto width = static_cast<size_t>(window_.width);
    for (int i = 0; i < count; ++i) {
      Element* to = &buffer_[static_cast<size_t>(i) * stride_];
      const ptrdiff_t at = (window_.y + y + i) * row_step_ + window_.x * (interleaved_ ? 3 : 1);
      const Element* from[Ways<Element>::most_planes];
      for (size_t j = 0; j < Ways<Element>::most_planes; ++j) from[j] = planes_[j] + at;
      interleaved_ ? ways_.spread(from[0], width, to) : ways_.join(from, width, to);
      rows[i] = to;
    }
    return true;
  }

 private:
  Ways<Element> ways_;
  ptrdiff_t row_step_;
  bool interleaved_;
  const Element* planes_[Ways<Element>::most_planes] = {};
  Rect window_{};
  size_t stride_ = 0;
  std::vector<Element> buffer_;
};

// Rows whose channels stay side by side.
class InterleavedFloats final : public FloatSink {
 public:
  InterleavedFloats(float* out, int width) : out_(out), width_(static_cast<size_t>(width)) {}
  void row(int y, float* pixels) override {
    float* to = out_ + static_cast<size_t>(y) * width_ * 3;
    for (size_t x = 0; x < width_; ++x) std::memcpy(to + 3 * x, pixels + 4 * x, 3 * sizeof(float));
  }

 private:
  float* out_;
  size_t width_;
};

class LevelRows final : public RowSink {
 public:
  LevelRows(uint8_t* out, size_t channels, int width, int height, bool interleaved, SimdLevel simd)
      : out_(out),
        channels_(channels),
        width_(static_cast<size_t>(width)),
        plane_(width_ * static_cast<size_t>(height)),
        interleaved_(interleaved),
        kernels_(interleave_kernels(simd)) {}
  void row(int y, const uint8_t* planes, size_t plane) override {
    uint8_t* to = out_ + static_cast<size_t>(y) * width_;
    for (size_t channel = 0; channel < channels_; ++channel)
      std::memcpy(to + channel * plane_, planes + channel * plane, width_);
  }
  bool pixels(int y, const uint8_t* row) override {
    if (interleaved_) kernels_.pack_rgb(row, width_, out_ + static_cast<size_t>(y) * width_ * 3);
    return interleaved_;
  }

 private:
  uint8_t* out_;
  size_t channels_, width_, plane_;
  bool interleaved_;
  const InterleaveKernels& kernels_;
};

// Makes one pass after the other with the same memory.
class FloatPasses {
 public:
  explicit FloatPasses(SimdLevel simd) : simd_(simd), resampler_(simd) {}
  void run(const Pass& pass, FloatSource& source, float* out, size_t taken, bool interleaved) {
    InterleavedFloats to_pixels(out, pass.kept.width);
    PlanarFloats to_planes(out, taken, pass.kept.width, pass.kept.height, simd_);
    if (interleaved)
      resampler_.run(pass, source, to_pixels);
    else
      resampler_.run(pass, source, to_planes);
  }

 private:
  SimdLevel simd_;
  FloatResampler resampler_;
};

class LevelPasses {
 public:
  explicit LevelPasses(SimdLevel simd) : simd_(simd), resampler_(simd, VerticalFirst::never) {}
  void run(const Pass& pass, RowSource& source, uint8_t* out, size_t taken, bool interleaved) {
    const Rect& kept = pass.kept;
    LevelRows sink(out, taken, kept.width, kept.height, interleaved, simd_);
    resampler_.run(pass, 1, pass.window.width, pass.window.height, source, sink);
  }

 private:
  SimdLevel simd_;
  Resampler resampler_;
};

}  // namespace

template <class Element>
void resize_tensor(const Element* in, const StridedPlanes& planes, Filter filter, Element* out,
                   int height, int width, bool out_interleaved, SimdLevel simd) {
  require_possible_size(planes.width, planes.height);
  require_possible_size(width, height);
  Pass pass;
  pass.window = {0, 0, planes.width, planes.height};
  pass.resized = true;
  pass.resized_width = width;
  pass.resized_height = height;
  pass.filter = filter;
  pass.kept = {0, 0, width, height};
  std::conditional_t<std::is_same_v<Element, float>, FloatPasses, LevelPasses> passes(simd);
  PlaneRows<Element> source(simd, planes.row_step, planes.interleaved);
  const size_t plane = static_cast<size_t>(height) * static_cast<size_t>(width);
  const size_t count = planes.images * planes.channels;
  for (size_t first = 0, taken; first < count; first += taken) {
    taken = planes.interleaved ? 3 : std::min(Ways<Element>::most_planes, count - first);
    for (size_t i = 0; i < taken; ++i)
      source.set_plane(
          i, in + static_cast<ptrdiff_t>((first + i) / planes.channels) * planes.image_step +
                 static_cast<ptrdiff_t>((first + i) % planes.channels) * planes.channel_step);
    passes.run(pass, source, out + first * plane, taken, out_interleaved);
  }
}

template void resize_tensor(const uint8_t*, const StridedPlanes&, Filter, uint8_t*, int, int, bool,
                            SimdLevel);
template void resize_tensor(const float*, const StridedPlanes&, Filter, float*, int, int, bool,
                            SimdLevel);

}  // namespace fusionloader
