#pragma once
// The image that a sample's steps work on: two buffers of packed pixels that change places.
#include "arithmetic/sampling.hpp"

namespace fusionloader::device {

struct Canvas {
  uint32_t *now, *next;
  void* extra;  // more working memory, for steps that ask for it
  int width, height;

  FUSIONLOADER_BOTH int size() const { return width * height; }
  FUSIONLOADER_BOTH PackedImage image() const { return {now, width, height}; }
  // What was written to `next` is the image now.
  FUSIONLOADER_BOTH void turn(int new_width, int new_height) {
    uint32_t* const read = now;
    now = next;
    next = read;
    width = new_width;
    height = new_height;
  }
};

}  // namespace fusionloader::device
