#include "resize/tensor_resize.hpp"

#include <algorithm>
#include <cstring>

#include "ops/limits.hpp"
#include "ops/per_level.hpp"

namespace fusionloader {
namespace {

constexpr size_t most_planes = floats_per_pixel;

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

// The rows of up to four planes, or of an interleaved image.
class PlaneRows final : public FloatSource {
 public:
  PlaneRows(SimdLevel simd, ptrdiff_t row_step, bool interleaved)
      : simd_(simd), row_step_(row_step), interleaved_(interleaved) {}

  void set_plane(size_t at, const float* plane) {
    for (; at < most_planes; ++at) planes_[at] = plane;
  }
  bool begin(Rect window) override {
    window_ = window;
    const size_t row = static_cast<size_t>(window.width) * floats_per_pixel;
    if (buffer_.size() < rows_at_once * row) buffer_.resize(rows_at_once * row);
    return true;
  }
  bool rows(int y, int count, const float** rows) override {
    const auto width = static_cast<size_t>(window_.width);
    for (int i = 0; i < count; ++i) {
      float* to = &buffer_[static_cast<size_t>(i) * width * floats_per_pixel];
      const ptrdiff_t at = (window_.y + y + i) * row_step_ + window_.x * (interleaved_ ? 3 : 1);
      if (interleaved_)
        widen(planes_[0] + at, width, to);
      else
        join_planes(simd_, planes_[0] + at, planes_[1] + at, planes_[2] + at, planes_[3] + at,
                    width, to);
      rows[i] = to;
    }
    return true;
  }

 private:
  // Takes the first float of the next pixel with each but the last.
  static void widen(const float* from, size_t width, float* to) {
    for (size_t x = 0; x + 1 < width; ++x)
      std::memcpy(to + 4 * x, from + 3 * x, sizeof(FloatPixel));
    std::memcpy(to + 4 * (width - 1), from + 3 * (width - 1), 3 * sizeof(float));
  }

  SimdLevel simd_;
  ptrdiff_t row_step_;
  bool interleaved_;
  const float* planes_[most_planes] = {};
  Rect window_{};
  std::vector<float> buffer_;
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

}  // namespace

void resize_tensor(const float* in, const StridedPlanes& planes, Filter filter, float* out,
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
  FloatResampler resampler(simd);
  PlaneRows source(simd, planes.row_step, planes.interleaved);
  const size_t plane = static_cast<size_t>(height) * static_cast<size_t>(width);
  const size_t count = planes.images * planes.channels;
  for (size_t first = 0; first < count;) {
    const size_t taken = planes.interleaved ? 3 : std::min(most_planes, count - first);
    for (size_t i = 0; i < taken; ++i)
      source.set_plane(
          i, in + static_cast<ptrdiff_t>((first + i) / planes.channels) * planes.image_step +
                 static_cast<ptrdiff_t>((first + i) % planes.channels) * planes.channel_step);
    InterleavedFloats to_pixels(out + first * plane, width);
    PlanarFloats to_planes(out + first * plane, taken, width, height, simd);
    if (out_interleaved)
      resampler.run(pass, source, to_pixels);
    else
      resampler.run(pass, source, to_planes);
    first += taken;
  }
}

}  // namespace fusionloader
