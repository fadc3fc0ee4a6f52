#include "plan/pipeline.hpp"

#include <algorithm>
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

}  // namespace

Pipeline::Pipeline(SimdLevel simd, bool vertical_first_allowed, int channels)
    : simd_(simd),
      resampler_(simd, vertical_first_allowed),
      augmenter_(simd),
      channels_(channels),
      stored_{StoredImage(simd), StoredImage(simd)} {}

bool Pipeline::run(const Parameters& parameters, int width, int height, const Begin& begin,
                   ResultWriter& result, PartTimes& times) {
  auto next = parameters.begin();
  const auto end = std::find_if(next, parameters.end(), [](const Operation& operation) {
    return std::holds_alternative<EraseResult>(operation);
  });
  if (std::any_of(end, parameters.end(), [](const Operation& operation) {
        return !std::holds_alternative<EraseResult>(operation);
      }))
    throw std::invalid_argument("nothing but erasing can follow erasing of the result");
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
      const auto number = static_cast<size_t>(next - parameters.begin());
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
    if (!resampler_.run(passes[i], denominator, width, height, *source, target)) return false;
    source = &between;
    denominator = 1;
    width = passes[i].kept.width;
    height = passes[i].kept.height;
  }
  return true;
}

void Pipeline::release_large_buffers() {
  resampler_.release_large_buffers();
  augmenter_.release_large_buffers();
  for (StoredImage& image : stored_)
    if (image.bytes() > largest_kept_buffer) image.release();
  for (Planes* image : {&planes_, &spare_})
    if (image->capacity() > largest_kept_buffer) image->release();
}

}  // namespace fusionloader
