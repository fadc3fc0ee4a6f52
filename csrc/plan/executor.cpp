#include "plan/executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "convert/convert.hpp"
#include "decode/decoders.hpp"
#include "ops/limits.hpp"
#include "plan/erase_result.hpp"
#include "plan/images.hpp"
#include "plan/pipeline.hpp"

namespace fusionloader {
namespace {

// The strongest reduction that leaves at least as many pixels as are wanted.
int reduction(const Pass& pass) {
  if (!pass.resized || pass.is_reduced() || pass.box || is_for_floats(pass.filter)) return 1;
  for (const int denominator : {8, 4, 2})
    if (pass.window.width >= pass.resized_width * denominator &&
        pass.window.height >= pass.resized_height * denominator)
      return denominator;
  return 1;
}

size_t pixel_bytes(int channels, int width, int height) {
  return static_cast<size_t>(channels) * static_cast<size_t>(width) * static_cast<size_t>(height);
}

PixelView view_of(const Pixels& image) {
  return {image.bytes.data(), image.width, image.height, image.channels,
          static_cast<ptrdiff_t>(image.width) * image.channels};
}

// A result of the size that the plan says, converted where the plan converts.
class RowOfBatch final : public ResultWriter, RowSink {
 public:
  RowOfBatch(const PlanSpec& plan, const std::optional<Converter>& converter, uint8_t* out)
      : plan_(plan),
        converter_(converter),
        out_(out),
        pixels_(out, plan.width, plan.result_channels, plan.simd) {}

  RowSink& begin(int width, int height) override {
    require_size(width, height);
    return *this;
  }
  float* begin_floats(int width, int height) override {
    require_size(width, height);
    return reinterpret_cast<float*>(out_);
  }
  void require_size(int width, int height) const {
    if (plan_.width > 0 && width == plan_.width && height == plan_.height) return;
    throw std::invalid_argument("the result has " + std::to_string(height) + " x " +
                                std::to_string(width) + " pixels, the plan says " +
                                std::to_string(plan_.height) + " x " + std::to_string(plan_.width));
  }
  void row(int y, const uint8_t* planes, size_t plane) override {
    if (converter_)
      converter_->row(y, {planes, plane}, out_);
    else
      pixels_.row(y, planes, plane);
  }
  bool pixels(int y, const uint8_t* row) override { return !converter_ && pixels_.pixels(y, row); }

 private:
  const PlanSpec& plan_;
  const std::optional<Converter>& converter_;
  uint8_t* out_;
  PixelSink pixels_;
};

// Pixels or floats of any size.
class PixelsOut final : public ResultWriter {
 public:
  PixelsOut(Pixels& out, int channels, SimdLevel simd)
      : out_(out), channels_(channels), simd_(simd) {}
  RowSink& begin(int width, int height) override {
    out_.width = width;
    out_.height = height;
    out_.channels = channels_;
    out_.bytes.resize(pixel_bytes(channels_, width, height));
    return sink_.emplace(out_.bytes.data(), width, channels_, simd_);
  }
  float* begin_floats(int width, int height) override {
    out_.width = width;
    out_.height = height;
    out_.channels = channels_;
    out_.bytes.resize(pixel_bytes(channels_, width, height) * sizeof(float));
    return reinterpret_cast<float*>(out_.bytes.data());
  }

 private:
  Pixels& out_;
  int channels_;
  SimdLevel simd_;
  std::optional<PixelSink> sink_;
};

bool works_on_floats(const PlanSpec& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const StageNode& node) {
    const auto* fixed = std::get_if<Fixed>(&node.stage);
    return fixed && std::holds_alternative<ToFloats>(fixed->operation);
  });
}

}  // namespace

struct Executor::Impl {
  PlanSpec spec;
  std::unique_ptr<RowTail> tail;
  Pipeline pipeline;
  std::optional<Converter> converter;
  std::vector<float> tables;  // of a plan that works on floats
  Decoders decoders;
  ImageDecoder* decoder = nullptr;  // of the opened file
  std::vector<uint8_t> pixel_row;
  std::vector<ScanEntry> entries;
  Pixels whole;  // an image that is to be kept
  PartTimes times;
  uint64_t most_pixels = most_decoded_pixels;

  Impl(PlanSpec plan, std::unique_ptr<RowTail> given)
      : spec(std::move(plan)),
        tail(std::move(given)),
        pipeline(spec.simd, spec.vertical_first, spec.channels),
        decoders(spec.simd, spec.strict) {
    for (const int channels : {spec.channels, spec.result_channels})
      if (channels != 1 && channels != 3)
        throw std::invalid_argument("a plan's images have 1 or 3 channels");
    // Grey can be made of colors, but not the other way round.
    if (spec.result_channels > spec.channels)
      throw std::invalid_argument("a plan's result has no more channels than its images");
    if (spec.width < 0 || spec.height < 0)
      throw std::invalid_argument("the size of a plan's result is not negative");
    require_possible_size(spec.width, spec.height);
    if (spec.deferred_stages > spec.stages.size() ||
        (spec.deferred_stages > 0) != (tail != nullptr))
      throw std::invalid_argument("stages are deferred with a tail, and no more than there are");
    if (tail && (spec.convert || spec.width == 0))
      throw std::invalid_argument("a tail is behind pixels of one size");
    if (works_on_floats(spec)) {
      take_tables();
      return;
    }
    if (!spec.convert) return;
    if (spec.width <= 0 || spec.height <= 0)
      throw std::invalid_argument("a plan with a conversion needs the size of its result");
    converter.emplace(*spec.convert, spec.width, spec.height, spec.result_channels, spec.simd);
  }

  void take_tables() {
    const size_t count = static_cast<size_t>(spec.result_channels) * 256;
    if (!spec.convert || !spec.convert->is_float32 ||
        spec.convert->table.size() != count * sizeof(float))
      throw std::invalid_argument("a plan that works on floats needs a conversion to float32");
    tables.resize(count);
    std::memcpy(tables.data(), spec.convert->table.data(), count * sizeof(float));
  }

  size_t result_bytes() const {
    if (converter) return converter->result_bytes();
    if (!tables.empty()) return all_pixels() * sizeof(float);
    return tail ? tail_begin() + tail->bytes() : all_pixels();
  }
  size_t all_pixels() const { return pixel_bytes(spec.result_channels, spec.width, spec.height); }
  size_t tail_begin() const { return (all_pixels() + 15) / 16 * 16; }

  // Moves what was drawn for the deferred stages from `drawn` into the tail.
  void write_tail(Parameters& drawn, uint8_t* out) {
    if (!tail) return;
    const size_t kept = spec.stages.size() - spec.deferred_stages;
    const size_t count = kept == 0 ? 0 : times.stage_ends[kept - 1];
    const auto begin = drawn.begin() + static_cast<ptrdiff_t>(count);
    tail->write(Parameters(begin, drawn.end()), out + tail_begin());
    drawn.erase(begin, drawn.end());
  }
  void require_no_tail() const {
    if (tail) throw std::invalid_argument("the plan's last stages are left to a device");
  }

  const std::vector<float>* tables_of_floats() const { return tables.empty() ? nullptr : &tables; }

  void run_pixels(const PixelView& image, const Parameters& parameters, ResultWriter& result) {
    if (image.channels != spec.channels && (image.channels != 4 || spec.channels != 3))
      throw std::invalid_argument("pixels of " + std::to_string(image.channels) +
                                  " channels, the plan is made for " +
                                  std::to_string(spec.channels));
    PixelSource source(image, pixel_row, spec.simd);
    const auto begin = [&](const Pass&) { return Pipeline::Start{source, 1}; };
    struct Releasing {
      Pipeline& pipeline;
      ~Releasing() { pipeline.release_large_buffers(); }
    } releasing{pipeline};
    pipeline.run(parameters, image.width, image.height, begin, result, times, tables_of_floats());
  }

  // The decoder is open.
  bool run_decoder(const Parameters& parameters, ResultWriter& result, EntryIndex index = {}) {
    return run_decoder(parameters, result, index, tables_of_floats());
  }

  // All levels of the image.
  bool decode_whole(ResultWriter& result) { return run_decoder({}, result, {}, nullptr); }

  bool run_decoder(const Parameters& parameters, ResultWriter& result, EntryIndex index,
                   const std::vector<float>* floats) {
    std::optional<DecodedSource> source;
    const auto begin = [&](const Pass& first) {
      const int denominator = spec.fast_decode && decoder->shrinks() ? reduction(first) : 1;
      return Pipeline::Start{source.emplace(*decoder, denominator, index), denominator};
    };
    return pipeline.run(parameters, decoder->width(), decoder->height(), begin, result, times,
                        floats);
  }

  bool open(ByteView encoded) {
    if (spec.channels != 3) throw std::invalid_argument("encoded images are decoded to RGB");
    decoder = open_within_limit(encoded);
    return decoder != nullptr;
  }

  ImageDecoder* open_within_limit(ByteView encoded) {
    ImageDecoder* opened = decoders.open(encoded);
    if (!opened) return nullptr;
    const auto width = static_cast<uint64_t>(opened->width());
    if (width * static_cast<uint64_t>(opened->height()) <= most_pixels) return opened;
    opened->close();
    return nullptr;
  }

  // The index of the opened file; recorded if it is wanted.
  EntryIndex index(ImageKeeper& keeper) {
    if (const auto kept = keeper.index()) return *kept;
    if (!decoder->is_indexed() || !keeper.wants_index()) return {};
    decoder->record(entries);
    const EntryIndex recorded{entries.data(), entries.size()};
    keeper.keep_index(recorded);
    return recorded;
  }

  void close() {
    decoder->close();
    pipeline.release_large_buffers();
  }

  Parameters drawn(const SampleKey& key, int width, int height) {
    return draw(spec, key, width, height, &times.stage_ends);
  }

  void erase(const Parameters& parameters, uint8_t* out) {
    const PartTimes::Timed timed(times, Part::passes);
    if (spec.convert)
      erase_results(parameters, *spec.convert, {spec.result_channels, spec.width, spec.height},
                    out);
  }
};

namespace {

// Closes the decoder however the work ends.
template <class Impl>
class Opened {
 public:
  Opened(Impl& impl, ByteView encoded) : impl_(impl), open_(impl.open(encoded)) {}
  ~Opened() {
    if (open_) impl_.close();
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  explicit operator bool() const { return open_; }

 private:
  Impl& impl_;
  bool open_;
};

}  // namespace

Executor::Executor(PlanSpec spec, std::unique_ptr<RowTail> tail)
    : impl_(std::make_unique<Impl>(std::move(spec), std::move(tail))) {}
Executor::~Executor() = default;

size_t Executor::result_bytes() const { return impl_->result_bytes(); }
void Executor::clear_tail(uint8_t* out) {
  if (impl_->tail) impl_->tail->clear(out + impl_->tail_begin());
}
const PlanSpec& Executor::plan() const { return impl_->spec; }
PartTimes& Executor::times() { return impl_->times; }
uint64_t Executor::most_pixels() const { return impl_->most_pixels; }
void Executor::set_most_pixels(uint64_t pixels) {
  impl_->most_pixels = std::min(pixels, most_decoded_pixels);
}
const char* Executor::conversion() const {
  if (!impl_->tables.empty()) return "lookup";
  return impl_->converter ? impl_->converter->method() : "copy";
}

Status Executor::run_encoded(ByteView encoded, const SampleKey& key, uint8_t* out,
                             ImageKeeper* keeper) {
  const Opened opened(*impl_, encoded);
  if (!opened) return Status::needs_pillow;
  const int width = impl_->decoder->width(), height = impl_->decoder->height();
  if (keeper && keeper->wants_pixels(width, height)) return run_kept(key, out, *keeper);
  const EntryIndex index = keeper ? impl_->index(*keeper) : EntryIndex{};
  Parameters drawn = impl_->drawn(key, width, height);
  impl_->write_tail(drawn, out);
  return run_opened(drawn, out, index);
}

// The whole image is decoded, and what is then read of it is what is read when it is kept.
Status Executor::run_kept(const SampleKey& key, uint8_t* out, ImageKeeper& keeper) {
  Pixels& whole = impl_->whole;
  PixelsOut pixels(whole, impl_->spec.channels, impl_->spec.simd);
  if (!impl_->decode_whole(pixels)) return Status::needs_pillow;
  const PixelView image = view_of(whole);
  keeper.keep_pixels(image);
  const auto began = std::chrono::steady_clock::now();
  run_pixels(image, key, out);
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - began;
  keeper.pixels_used(static_cast<uint64_t>(passed.count()));
  if (whole.bytes.size() > largest_kept_buffer) std::vector<uint8_t>().swap(whole.bytes);
  return Status::ok;
}

Status Executor::run_encoded_with(ByteView encoded, const Parameters& parameters, uint8_t* out,
                                  EntryIndex index) {
  impl_->require_no_tail();
  impl_->times.stage_ends.clear();
  const Opened opened(*impl_, encoded);
  return opened ? run_opened(parameters, out, index) : Status::needs_pillow;
}

std::vector<ScanEntry> Executor::record(ByteView encoded) {
  const Opened opened(*impl_, encoded);
  std::vector<ScanEntry> entries;
  if (opened) impl_->decoder->record(entries);
  return entries;
}

Status Executor::run_opened(const Parameters& parameters, uint8_t* out, EntryIndex index) {
  RowOfBatch result(impl_->spec, impl_->converter, out);
  if (!impl_->run_decoder(parameters, result, index)) return Status::needs_pillow;
  impl_->erase(parameters, out);
  return Status::ok;
}

void Executor::run_pixels(const PixelView& image, const SampleKey& key, uint8_t* out) {
  Parameters drawn = impl_->drawn(key, image.width, image.height);
  impl_->write_tail(drawn, out);
  run_pixels_drawn(image, drawn, out);
}

void Executor::run_pixels_with(const PixelView& image, const Parameters& parameters, uint8_t* out) {
  impl_->require_no_tail();
  impl_->times.stage_ends.clear();
  run_pixels_drawn(image, parameters, out);
}

void Executor::run_pixels_drawn(const PixelView& image, const Parameters& parameters,
                                uint8_t* out) {
  RowOfBatch result(impl_->spec, impl_->converter, out);
  impl_->run_pixels(image, parameters, result);
  impl_->erase(parameters, out);
}

Status Executor::pixels_of_encoded(ByteView encoded, const SampleKey& key, Pixels& out) {
  impl_->require_no_tail();
  if (impl_->converter) throw std::invalid_argument("the plan converts: its result is not pixels");
  const Opened opened(*impl_, encoded);
  if (!opened) return Status::needs_pillow;
  PixelsOut result(out, impl_->spec.result_channels, impl_->spec.simd);
  const Parameters drawn = impl_->drawn(key, impl_->decoder->width(), impl_->decoder->height());
  return impl_->run_decoder(drawn, result) ? Status::ok : Status::needs_pillow;
}

void Executor::pixels_of_pixels(const PixelView& image, const SampleKey& key, Pixels& out) {
  impl_->require_no_tail();
  if (impl_->converter) throw std::invalid_argument("the plan converts: its result is not pixels");
  PixelsOut result(out, impl_->spec.result_channels, impl_->spec.simd);
  impl_->run_pixels(image, impl_->drawn(key, image.width, image.height), result);
}

void Executor::pixels_with(const PixelView& image, const Parameters& parameters, Pixels& out) {
  impl_->require_no_tail();
  impl_->times.stage_ends.clear();
  PixelsOut result(out, impl_->spec.result_channels, impl_->spec.simd);
  impl_->run_pixels(image, parameters, result);
}

Status Executor::decode(ByteView encoded, int width, int height, PixelOrder order, uint8_t* out) {
  const Opened opened(*impl_, encoded);
  if (!opened) return Status::needs_pillow;
  ImageDecoder& decoder = *impl_->decoder;
  if (decoder.width() != width || decoder.height() != height ||
      !decoder.start({0, 0, width, height}, 1, {}))
    return Status::needs_pillow;
  const auto columns = static_cast<size_t>(width);
  const InterleaveKernels& kernels = interleave_kernels(impl_->spec.simd);
  const auto pack = order == PixelOrder::bgr ? kernels.pack_bgr : kernels.pack_rgb;
  const size_t stride = columns * (order == PixelOrder::rgbx   ? 4
                                   : order == PixelOrder::grey ? 1
                                                               : 3);
  for (int y = 0; y < height; y += rows_at_once) {
    const int count = std::min(rows_at_once, height - y);
    const uint8_t* rows[rows_at_once];
    if (!decoder.rows(y, count, rows)) return Status::needs_pillow;
    for (int i = 0; i < count; ++i, out += stride) {
      if (order == PixelOrder::rgbx)
        std::memcpy(out, rows[i], stride);
      else if (order == PixelOrder::grey)
        for (size_t x = 0; x < columns; ++x) out[x] = rows[i][4 * x];
      else
        pack(rows[i], columns, out);
    }
  }
  return Status::ok;
}

bool Executor::image_size(ByteView encoded, int& width, int& height) {
  ImageDecoder* decoder = impl_->open_within_limit(encoded);
  if (!decoder) return false;
  width = decoder->width();
  height = decoder->height();
  decoder->close();
  return true;
}

}  // namespace fusionloader
