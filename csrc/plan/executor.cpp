#include "plan/executor.hpp"

#include <optional>
#include <stdexcept>
#include <string>

#include "convert/convert.hpp"
#include "plan/passes.hpp"

namespace fusionloader {
namespace {

constexpr size_t largest_kept_image = size_t{16} << 20;

// The strongest of libjpeg's fast reductions that leaves at least as many pixels as are wanted.
int reduction(const Pass& pass) {
  if (!pass.resized) return 1;
  for (const int denominator : {8, 4, 2})
    if (pass.window.width >= pass.resized_width * denominator &&
        pass.window.height >= pass.resized_height * denominator)
      return denominator;
  return 1;
}

int divide_up(int value, int denominator) { return (value + denominator - 1) / denominator; }

}  // namespace

struct Executor::Impl {
  PlanSpec spec;
  Resampler resampler;
  std::optional<Converter> converter;
  RegionDecoder decoder;
  StoredImage stored[2];
  std::vector<uint8_t> pixel_row;

  explicit Impl(PlanSpec plan)
      : spec(std::move(plan)), resampler(spec.simd, spec.vertical_first_allowed) {
    if (spec.channels != 1 && spec.channels != 3)
      throw std::invalid_argument("a plan's images have 1 or 3 channels");
    if (!spec.convert) return;
    if (spec.width <= 0 || spec.height <= 0)
      throw std::invalid_argument("a plan with a conversion needs the size of its result");
    converter.emplace(*spec.convert, spec.width, spec.height, spec.channels, spec.simd);
  }

  size_t result_bytes() const {
    if (converter) return converter->result_bytes();
    return pixel_bytes(spec.width, spec.height);
  }

  size_t pixel_bytes(int width, int height) const {
    return static_cast<size_t>(spec.channels) * static_cast<size_t>(width) *
           static_cast<size_t>(height);
  }

  void require_result_size(const Rect& kept) const {
    if (spec.width > 0 && kept.width == spec.width && kept.height == spec.height) return;
    throw std::invalid_argument("the result has " + std::to_string(kept.height) + " x " +
                                std::to_string(kept.width) + " pixels, the plan says " +
                                std::to_string(spec.height) + " x " + std::to_string(spec.width));
  }

  // All passes but the last, each into an image of its own, then the last into `sink`.
  bool run_passes(const std::vector<Pass>& passes, int denominator, int width, int height,
                  RowSource& first, RowSink& sink) {
    RowSource* source = &first;
    for (size_t i = 0; i < passes.size(); ++i) {
      const bool last = i + 1 == passes.size();
      StoredImage& between = stored[i % 2];
      if (!last) between.resize(passes[i].kept.width, passes[i].kept.height);
      RowSink& target = last ? sink : between;
      if (!resampler.run(passes[i], denominator, width, height, *source, target)) return false;
      source = &between;
      denominator = 1;
      width = passes[i].kept.width;
      height = passes[i].kept.height;
    }
    return true;
  }

  void release_large_buffers() {
    resampler.release_large_buffers();
    for (StoredImage& image : stored)
      if (image.bytes() > largest_kept_image) image.release();
  }

  // `make_sink` gets the size of the result and gives the sink for it.
  template <class MakeSink>
  void pixels_through(const PixelView& image, const Parameters& parameters, MakeSink make_sink) {
    if (image.channels != spec.channels)
      throw std::invalid_argument("pixels of " + std::to_string(image.channels) +
                                  " channels, the plan is made for " +
                                  std::to_string(spec.channels));
    const std::vector<Pass> passes = group_into_passes(parameters, image.width, image.height);
    PixelSource source(image, pixel_row);
    auto sink = make_sink(passes.back().kept);
    run_passes(passes, 1, image.width, image.height, source, sink);
    release_large_buffers();
  }

  // `parameters_for` gets the image's width and height. The decoder is open.
  template <class ParametersFor, class MakeSink>
  Status decoded_through(ParametersFor parameters_for, MakeSink make_sink) {
    const int width = decoder.width(), height = decoder.height();
    const Parameters parameters = parameters_for(width, height);
    const std::vector<Pass> passes = group_into_passes(parameters, width, height);
    const int denominator = spec.fast_decode ? reduction(passes[0]) : 1;
    JpegSource source(decoder, denominator);
    auto sink = make_sink(passes.back().kept);
    const bool done = run_passes(passes, denominator, divide_up(width, denominator),
                                 divide_up(height, denominator), source, sink);
    return done ? Status::ok : Status::needs_pillow;
  }

  template <class ParametersFor, class MakeSink>
  Status encoded_through(ByteView encoded, ParametersFor parameters_for, MakeSink make_sink) {
    if (spec.channels != 3) throw std::invalid_argument("encoded images are decoded to RGB");
    if (!decoder.open(encoded)) return Status::needs_pillow;
    struct Closing {
      Impl& impl;
      ~Closing() {
        impl.decoder.close();
        impl.release_large_buffers();
      }
    } closing{*this};
    return decoded_through(parameters_for, make_sink);
  }

  auto drawing(const SampleKey& key) const {
    return [this, key](int width, int height) { return draw(spec, key, width, height); };
  }

  // Chooses between the two kinds of sinks, since a plan either converts or gives pixels.
  struct ResultSink final : RowSink {
    const Converter* converter;
    uint8_t* out;
    PixelSink pixels;
    ResultSink(const Converter* chosen, uint8_t* to, int width, int channels)
        : converter(chosen), out(to), pixels(to, width, channels) {}
    void row(int y, const uint8_t* planes, size_t plane) override {
      if (converter)
        converter->row(y, {planes, plane}, out);
      else
        pixels.row(y, planes, plane);
    }
  };

  auto result_into(uint8_t* out) const {
    return [this, out](const Rect& kept) {
      require_result_size(kept);
      return ResultSink(converter ? &*converter : nullptr, out, kept.width, spec.channels);
    };
  }

  auto pixels_into(Pixels& out) const {
    return [this, &out](const Rect& kept) {
      if (converter) throw std::invalid_argument("the plan converts: its result is not pixels");
      out.width = kept.width;
      out.height = kept.height;
      out.bytes.resize(pixel_bytes(kept.width, kept.height));
      return PixelSink(out.bytes.data(), kept.width, spec.channels);
    };
  }
};

Executor::Executor(PlanSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {}
Executor::~Executor() = default;

size_t Executor::result_bytes() const { return impl_->result_bytes(); }
const PlanSpec& Executor::plan() const { return impl_->spec; }
const char* Executor::conversion() const {
  return impl_->converter ? impl_->converter->method() : "copy";
}

Status Executor::run_encoded(ByteView encoded, const SampleKey& key, uint8_t* out) {
  return impl_->encoded_through(encoded, impl_->drawing(key), impl_->result_into(out));
}

Status Executor::run_encoded_with(ByteView encoded, const Parameters& parameters, uint8_t* out) {
  const auto given = [&](int, int) { return parameters; };
  return impl_->encoded_through(encoded, given, impl_->result_into(out));
}

void Executor::run_pixels(const PixelView& image, const SampleKey& key, uint8_t* out) {
  run_pixels_with(image, draw(impl_->spec, key, image.width, image.height), out);
}

void Executor::run_pixels_with(const PixelView& image, const Parameters& parameters, uint8_t* out) {
  impl_->pixels_through(image, parameters, impl_->result_into(out));
}

Status Executor::pixels_of_encoded(ByteView encoded, const SampleKey& key, Pixels& out) {
  return impl_->encoded_through(encoded, impl_->drawing(key), impl_->pixels_into(out));
}

void Executor::pixels_of_pixels(const PixelView& image, const SampleKey& key, Pixels& out) {
  const Parameters parameters = draw(impl_->spec, key, image.width, image.height);
  impl_->pixels_through(image, parameters, impl_->pixels_into(out));
}

bool Executor::image_size(ByteView encoded, int& width, int& height) {
  return read_image_size(impl_->decoder, encoded, width, height);
}

}  // namespace fusionloader
