#pragma once
// Runs a plan on one sample: draw its parameters, decode what they need, write the result in place.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plan/program.hpp"

namespace fusionloader {

struct ByteView {
  const uint8_t* data;
  size_t size;
};

// What identifies a sample's random draws, whoever makes them. `occurrence` counts from 0 how often
// the index has already come up in this epoch: repeated indices get draws of their own.
struct SampleKey {
  uint64_t seed;
  uint64_t epoch;
  uint64_t index;
  uint64_t occurrence;
};

enum class Status : int {
  ok = 0,
  // Not a JPEG for which this decoder vouches (other format, CMYK, 12 bit, damaged, truncated, over
  // Pillow's pixel limit): Pillow decodes it, or words the error.
  needs_pillow = 1,
};

// Not thread-safe: one per thread. Buffers are reused from sample to sample.
class Executor {
 public:
  explicit Executor(PlanSpec spec);
  ~Executor();

  // Bytes of one result; 0 when the plan's result differs in size from image to image.
  size_t result_bytes() const;

  // `out` has room for result_bytes().
  Status run_encoded(ByteView encoded, const SampleKey& key, uint8_t* out);

  // The same on decoded pixels: height x width x 3, 8 bit, rows `stride` bytes apart.
  void run_pixels(const uint8_t* rgb, int width, int height, ptrdiff_t stride, const SampleKey& key,
                  uint8_t* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fusionloader
