#include "plan/pipeline.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

int divide_up(int value, int denominator) { return (value + denominator - 1) / denominator; }

void emit(const Planes& image, RowSink& sink) {
  if (image.width() == 0) return;  // there may be no memory at all
  for (int y = 0; y < image.height(); ++y) {
    const size_t row = static_cast<size_t>(y) * static_cast<size_t>(image.width());
    sink.row(y, image.plane(0) + row, image.plane_stride());
  }
}

template <class Kind>
bool is(const Operation& operation) {
  return std::holds_alternative<Kind>(operation);
}

// Floats of levels, rounded to levels again.
class RoundedRows final : public FloatSink {
 public:
  RoundedRows(RowSink& sink, int width, SimdLevel simd)
      : sink_(sink),
        simd_(simd),
        width_(static_cast<size_t>(width)),
        plane_((width_ + 31) / 32 * 32),
        pixels_(width_ * floats_per_pixel + row_slack),
        planes_(3 * plane_ + row_slack) {}
  void row(int y, float* pixels) override {
    round_to_levels(simd_, pixels, width_, pixels_.data());
    if (sink_.pixels(y, pixels_.data())) return;
    resize_kernels(simd_).split(pixels_.data(), width_, planes_.data(), plane_);
    sink_.row(y, planes_.data(), plane_);
  }

 private:
  RowSink& sink_;
  SimdLevel simd_;
  size_t width_, plane_;
  std::vector<uint8_t> pixels_, planes_;
};

class NormalizedRows final : public FloatSink {
 public:
  NormalizedRows(FloatSink& sink, const Parameters& steps, int width, SimdLevel simd)
      : sink_(sink), steps_(steps), width_(static_cast<size_t>(width)), simd_(simd) {}
  void row(int y, float* pixels) override {
    for (const Operation& step : steps_) {
      const auto& by = std::get<NormalizeBy>(step);
      const FloatPixel mean{by.mean[0], by.mean[1], by.mean[2], 0.0f};
      const FloatPixel deviation{by.deviation[0], by.deviation[1], by.deviation[2], 1.0f};
      subtract_and_divide(simd_, pixels, width_, mean, deviation);
    }
    sink_.row(y, pixels);
  }

 private:
  FloatSink& sink_;
  const Parameters& steps_;
  size_t width_;
  SimdLevel simd_;
};

class PlanesWriter final : public ResultWriter {
 public:
  PlanesWriter(Planes& image, int channels) : image_(image), channels_(channels) {}
  RowSink& begin(int width, int height) override {
    return sink_.emplace(image_, channels_, width, height);
  }
  float* begin_floats(int, int) override { throw std::logic_error("planes take no floats"); }

 private:
  Planes& image_;
  int channels_;
  std::optional<PlanesSink> sink_;
};

size_t pixels_of(int width, int height) {
  return static_cast<size_t>(width) * static_cast<size_t>(height);
}

// Whether a pass does nothing but to take a window of the image.
bool is_window(const Pass& pass) {
  return !pass.resized && !pass.is_reduced() && !pass.mirrored && !pass.upside_down &&
         pass.kept.x >= 0 && pass.kept.y >= 0 &&
         pass.kept.x + pass.kept.width <= pass.resized_width &&
         pass.kept.y + pass.kept.height <= pass.resized_height;
}

void require_for_floats(const Operation& operation) {
  const auto* resize = std::get_if<ResizeTo>(&operation);
  const bool known = resize ? is_for_floats(resize->filter) && !resize->box
                            : is<CropTo>(operation) || is<PadBy>(operation) ||
                                  is<FlipHorizontally>(operation) || is<FlipVertically>(operation);
  if (!known) throw std::invalid_argument("an operation works on levels, and follows to_floats");
}

}  // namespace

// A pass on floats, what is done to its result then, and the size after that.
struct Pipeline::FloatPass {
  Pass pass;
  Parameters after;
  FloatSize size;

  bool changes_planes() const { return std::any_of(after.begin(), after.end(), changes_floats); }

  static bool is_after(const Operation& operation) {
    return is<NormalizeBy>(operation) || changes_floats(operation);
  }

  static std::vector<FloatPass> group(Operations next, Operations end, int width, int height) {
    std::vector<FloatPass> made;
    do {
      const auto windows_end = std::find_if(next, end, is_after);
      std::for_each(next, windows_end, require_for_floats);
      for (const Pass& pass : group_into_passes(Parameters(next, windows_end), width, height))
        made.push_back({pass, {}, {pass.kept.width, pass.kept.height}});
      FloatPass& last = made.back();
      next = std::find_if_not(windows_end, end, is_after);
      last.after.assign(windows_end, next);
      for (const Operation& operation : last.after) last.size = size_after(operation, last.size);
      width = last.size.width;
      height = last.size.height;
    } while (next != end);
    return made;
  }
};

Pipeline::Pipeline(SimdLevel simd, VerticalFirst vertical_first, int channels)
    : simd_(simd),
      resampler_(simd, vertical_first),
      float_resampler_(simd),
      float_augmenter_(simd),
      augmenter_(simd),
      channels_(channels),
      stored_{StoredImage(simd), StoredImage(simd)} {}

bool Pipeline::run(const Parameters& parameters, int width, int height, const Begin& begin,
                   ResultWriter& result, PartTimes& times, const std::vector<float>* tables) {
  const auto first = parameters.begin();
  const auto end = std::find_if(first, parameters.end(), is<EraseResult>);
  if (!std::all_of(end, parameters.end(), is<EraseResult>))
    throw std::invalid_argument("nothing but erasing can follow erasing of the result");
  const auto converted = std::find_if(first, end, is<ToFloats>);
  if (tables)
    return run_floats(first, converted, end, width, height, begin, result, times, *tables);
  if (converted != end) throw std::invalid_argument("the plan does not say how to make floats");
  return run_levels(first, end, width, height, begin, result, times);
}

bool Pipeline::run_levels(Operations next, Operations end, int width, int height,
                          const Begin& begin, ResultWriter& result, PartTimes& times) {
  const auto first_operation = next;
  PlanesSource from_planes(planes_, row_buffer_, simd_);
  bool first = true;
  for (;;) {
    const auto windows_end = std::find_if_not(next, end, is_of_a_pass);
    const std::vector<Pass> passes =
        group_into_passes(Parameters(next, windows_end), width, height);
    next = windows_end;
    const Rect kept = passes.back().kept;
    const Start start = first ? begin(passes[0]) : Start{from_planes, 1};
    if (next == end) {
      const PartTimes::Timed timed(times, Part::passes);
      return run_passes(passes, start, width, height, result.begin(kept.width, kept.height));
    }
    PlanesSink to_planes(first ? planes_ : spare_, channels_, kept.width, kept.height);
    {
      const PartTimes::Timed timed(times, Part::passes);
      if (!run_passes(passes, start, width, height, to_planes)) return false;
    }
    if (!first) std::swap(planes_, spare_);
    for (; next != end && !is_of_a_pass(*next); ++next) {
      const auto number = static_cast<size_t>(next - first_operation);
      const PartTimes::Timed timed(times, times.part_of(number));
      augmenter_.apply(*next, planes_);
    }
    width = planes_.width();
    height = planes_.height();
    if (next == end) {
      const PartTimes::Timed timed(times, Part::passes);
      emit(planes_, result.begin(width, height));
      return true;
    }
    first = false;
  }
}

// All passes but the last, each into a new image, then the last into `sink`.
bool Pipeline::run_passes(const std::vector<Pass>& passes, const Start& start, int width,
                          int height, RowSink& sink) {
  RowSource* source = &start.source;
  int denominator = start.denominator;
  width = divide_up(width, denominator);
  height = divide_up(height, denominator);
  for (size_t i = 0; i < passes.size(); ++i) {
    const bool last = i + 1 == passes.size();
    StoredImage& between = stored_[i % 2];
    if (!last) between.resize(passes[i].kept.width, passes[i].kept.height);
    RowSink& target = last ? sink : between;
    if (passes[i].resized && is_for_floats(passes[i].filter)) {
      std::vector<float> levels(256);
      std::iota(levels.begin(), levels.end(), 0.0f);
      FloatsOfLevels floats(*source, levels, 0, 0);
      RoundedRows rounded(target, passes[i].kept.width, simd_);
      if (!float_resampler_.run(passes[i], floats, rounded)) return false;
    } else if (!resampler_.run(passes[i], denominator, width, height, *source, target)) {
      return false;
    }
    source = &between;
    denominator = 1;
    width = passes[i].kept.width;
    height = passes[i].kept.height;
  }
  return true;
}

// Of the image no more is decoded than the first pass on floats needs.
bool Pipeline::run_floats(Operations first, Operations converted, Operations end, int width,
                          int height, const Begin& begin, ResultWriter& result, PartTimes& times,
                          const std::vector<float>& tables) {
  Parameters levels(first, converted);
  if (converted != end) ++converted;
  PlanesWriter writer(levels_, channels_);
  Rect needed{};
  std::vector<FloatPass> float_passes;
  if (std::all_of(levels.begin(), levels.end(), is_of_a_pass)) {
    const std::vector<Pass> passes = group_into_passes(levels, width, height);
    const Rect kept = passes.back().kept;
    float_passes = FloatPass::group(converted, end, kept.width, kept.height);
    if (passes.size() == 1 && is_window(passes[0])) {
      const PartTimes::Timed timed(times, Part::passes);
      const Rect& window = passes[0].window;
      RowSource& source = begin(passes[0]).source;
      FloatsOfLevels floats(source, tables, window.x + kept.x, window.y + kept.y);
      return run_float_passes(float_passes, floats, tables.size() / 256, result);
    }
    needed = float_resampler_.needed(float_passes[0].pass);
    if (needed.width > 0)
      levels.push_back(CropTo{needed.x, needed.y, needed.width, needed.height, {}});
  }
  if (!run_levels(levels.cbegin(), levels.cend(), width, height, begin, writer, times))
    return false;
  if (float_passes.empty())
    float_passes = FloatPass::group(converted, end, levels_.width(), levels_.height());
  const PartTimes::Timed timed(times, Part::passes);
  PlanesSource from_planes(levels_, row_buffer_, simd_);
  FloatsOfLevels floats(from_planes, tables, -needed.x, -needed.y);
  return run_float_passes(float_passes, floats, tables.size() / 256, result);
}

bool Pipeline::run_float_passes(const std::vector<FloatPass>& passes, FloatSource& first,
                                size_t channels, ResultWriter& result) {
  FloatSource* source = &first;
  for (size_t i = 0; i < passes.size(); ++i) {
    const Rect& kept = passes[i].pass.kept;
    const auto [width, height] = passes[i].size;
    FloatImage& between = float_images_[i % 2];
    const bool last = i + 1 == passes.size();
    if (!last) between.resize(width, height);
    float* out = last ? result.begin_floats(width, height) : nullptr;
    const bool changes_planes = passes[i].changes_planes();
    float* planes =
        changes_planes ? float_augmenter_.begin(channels, kept.width, kept.height) : out;
    PlanarFloats to_planes(planes, channels, kept.width, kept.height, simd_);
    FloatSink& target = planes ? static_cast<FloatSink&>(to_planes) : between;
    const Parameters none;
    const Parameters& in_rows = changes_planes ? none : passes[i].after;
    NormalizedRows normalized(target, in_rows, kept.width, simd_);
    if (!float_resampler_.run(passes[i].pass, *source, normalized)) return false;
    if (changes_planes) {
      const float* made = float_augmenter_.run(passes[i].after, out);
      if (!last) between.take_planes(made, channels, pixels_of(width, height));
    }
    source = &between;
  }
  return true;
}

void Pipeline::release_large_buffers() {
  resampler_.release_large_buffers();
  float_resampler_.release_large_buffers();
  float_augmenter_.release_large_buffers();
  for (FloatImage& image : float_images_)
    if (image.bytes() > largest_kept_buffer) image.release();
  augmenter_.release_large_buffers();
  for (StoredImage& image : stored_)
    if (image.bytes() > largest_kept_buffer) image.release();
  for (Planes* image : {&planes_, &spare_, &levels_})
    if (image->capacity() > largest_kept_buffer) image->release();
}

}  // namespace fusionloader
