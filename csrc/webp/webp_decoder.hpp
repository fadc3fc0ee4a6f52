#pragma once
// Decodes WebP images to the pixels that Pillow gives, by libwebp.
//
// The whole image is decoded at the start, whatever the window: damage shows when the last
// macroblock is read, and Pillow raises for it.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/decoder.hpp"

namespace fusionloader {

class WebpDecoder final : public ImageDecoder {
 public:
  static bool begins(ByteView encoded);

  bool open(ByteView encoded) override;
  int width() const override { return width_; }
  int height() const override { return height_; }
  bool start(Rect window, int denominator, EntryIndex index) override;
  bool rows(int y, int count, const uint8_t** rows) override;
  void close() override;

 private:
  ByteView image_{};  // its chunks in the file
  int width_ = 0, height_ = 0;
  Rect window_{};
  std::vector<uint8_t> pixels_;  // RGBA
};

}  // namespace fusionloader
