#pragma once
#include <cstdint>
#include <optional>

#include "plan/images.hpp"

namespace fusionloader {

// Keeps results of decoding an image (pixels, or the index of its file) for the next time.
class ImageKeeper {
 public:
  virtual ~ImageKeeper() = default;
  // Whether the pixels of the whole image are to be decoded, and kept.
  virtual bool wants_pixels(int width, int height) = 0;
  virtual void keep_pixels(const PixelView& image) = 0;
  // The sample was made from these pixels in so many ns, without decoding.
  virtual void pixels_used(uint64_t ns) = 0;

  // What was kept as the index of the file that is decoded; nothing if there is none yet.
  virtual std::optional<EntryIndex> index() = 0;
  virtual bool wants_index() = 0;
  // Empty for a file that can have none.
  virtual void keep_index(EntryIndex index) = 0;
};

}  // namespace fusionloader
