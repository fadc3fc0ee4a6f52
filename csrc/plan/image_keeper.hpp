#pragma once
#include "plan/images.hpp"

namespace fusionloader {

// Whoever wants to keep what decoding an image brought forth, for the next time it is asked for.
class ImageKeeper {
 public:
  virtual ~ImageKeeper() = default;
  // Whether the pixels of the whole image are to be decoded, and kept.
  virtual bool wants_pixels(int width, int height) = 0;
  virtual void keep_pixels(const PixelView& image) = 0;
};

}  // namespace fusionloader
