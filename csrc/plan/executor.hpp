#pragma once
// Runs a plan on one sample: draw its parameters, decode what they need, write the result in place.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "image/views.hpp"
#include "plan/image_keeper.hpp"
#include "plan/images.hpp"  // PixelView
#include "plan/part_times.hpp"
#include "plan/program.hpp"
#include "plan/row_tail.hpp"
#include "rng/philox.hpp"  // SampleKey

namespace fusionloader {

enum class Status : int {
  ok = 0,
  // Not a file that the decoders decode as Pillow does (another format, CMYK, 16 bit, animated,
  // damaged, truncated, over Pillow's pixel limit): Pillow decodes it, or words the error.
  needs_pillow = 1,
};

// The bytes of a pixel. RGBX: RGBA where the file has an alpha channel. Grey: the red one alone,
// which is the level of a grey image.
enum class PixelOrder { rgb, bgr, rgbx, grey };

// 8 bit, height x width x channels; of a plan that works on floats the bytes of float32, channels x
// height x width.
struct Pixels {
  int width = 0, height = 0, channels = 3;
  std::vector<uint8_t> bytes;
};

// Not thread-safe: one per thread. Buffers are reused from sample to sample. What draw() throws
// (std::invalid_argument) every method that takes a SampleKey throws too.
class Executor {
 public:
  // With a tail, a result is the pixels before the deferred stages of a plan without conversion,
  // then the tail for these, from a multiple of 16 bytes on. Only the methods for a SampleKey that
  // write a result can be called then.
  explicit Executor(PlanSpec spec, std::unique_ptr<RowTail> tail = nullptr);
  ~Executor();

  // Bytes of one result; 0 when the plan's result differs in size from image to image.
  size_t result_bytes() const;
  // Marks the tail of a result, if it has one, as that of no sample.
  void clear_tail(uint8_t* out);
  const PlanSpec& plan() const;
  // For callers in several threads; not locked here.
  std::mutex& mutex() { return mutex_; }
  // Where the time went; the caller may set it back.
  PartTimes& times();
  // Images of more pixels are left to Pillow, which warns of them or refuses them.
  uint64_t most_pixels() const;
  void set_most_pixels(uint64_t pixels);
  // How 8-bit levels become elements: "copy", "arithmetic" or "lookup".
  const char* conversion() const;

  // `out` has room for result_bytes(). After needs_pillow it holds nothing of use. `keeper` says
  // what it keeps of the image, and gets that.
  Status run_encoded(ByteView encoded, const SampleKey& key, uint8_t* out,
                     ImageKeeper* keeper = nullptr);

  // The same on pixels, which have the plan's channels, or four where the plan has three.
  void run_pixels(const PixelView& image, const SampleKey& key, uint8_t* out);

  // The same with given parameters; the index is the file's, or empty.
  Status run_encoded_with(ByteView encoded, const Parameters& parameters, uint8_t* out,
                          EntryIndex index = {});
  void run_pixels_with(const PixelView& image, const Parameters& parameters, uint8_t* out);

  // For a plan without conversion, or one that works on floats: the pixels, of whatever size they
  // come out.
  Status pixels_of_encoded(ByteView encoded, const SampleKey& key, Pixels& out);
  void pixels_of_pixels(const PixelView& image, const SampleKey& key, Pixels& out);
  // Any plan's operations, without its conversion.
  void pixels_with(const PixelView& image, const Parameters& parameters, Pixels& out);

  // The index of a file; empty for one that can have none.
  std::vector<ScanEntry> record(ByteView encoded);

  // All pixels of a file as they are decoded, to a `width` x `height` image.
  Status decode(ByteView encoded, int width, int height, PixelOrder order, uint8_t* out);

  // From the header alone; false where only Pillow can read it.
  bool image_size(ByteView encoded, int& width, int& height);

 private:
  void run_pixels_drawn(const PixelView& image, const Parameters& parameters, uint8_t* out);
  Status run_opened(const Parameters& parameters, uint8_t* out, EntryIndex index = {});
  Status run_kept(const SampleKey& key, uint8_t* out, ImageKeeper& keeper);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::mutex mutex_;
};

}  // namespace fusionloader
