#pragma once
// What libjpeg-turbo makes of a file, and whether a window that our decoder gives is part of it.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <jpeglib.h>

#include "image/rows.hpp"
#include "jpeg/region_decoder.hpp"

namespace fusionloader::fuzz {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;  // RGBX
};

struct Errors {
  jpeg_error_mgr base;
  std::jmp_buf escape;
};

// False where libjpeg refuses. Warnings are nothing to Pillow, whose pixels are the measure.
inline bool decode_all(const uint8_t* data, size_t size, int denominator, Image& image) {
  jpeg_decompress_struct info{};
  Errors errors{};
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = [](j_common_ptr failed) {
    std::longjmp(reinterpret_cast<Errors*>(failed->err)->escape, 1);
  };
  errors.base.emit_message = [](j_common_ptr, int) {};
  jpeg_create_decompress(&info);
  if (setjmp(errors.escape)) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_mem_src(&info, data, static_cast<unsigned long>(size));
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_EXT_RGBX;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(denominator);
  jpeg_start_decompress(&info);
  image.width = static_cast<int>(info.output_width);
  image.height = static_cast<int>(info.output_height);
  const size_t stride = static_cast<size_t>(image.width) * 4;
  image.pixels.resize(stride * static_cast<size_t>(image.height));
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = &image.pixels[stride * info.output_scanline];
    if (jpeg_read_scanlines(&info, &row, 1) != 1) break;
  }
  const bool complete = info.output_scanline == info.output_height;
  jpeg_destroy_decompress(&info);
  return complete;
}

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// The window's pixels as RGBX rows; false where the file is left to others.
inline bool decode_window(RegionDecoder& decoder, Rect window, int denominator, EntryIndex index,
                          std::vector<uint8_t>& pixels) {
  const size_t stride = static_cast<size_t>(window.width) * 4;
  pixels.clear();
  if (!decoder.start(window, denominator, index)) return false;
  for (int y = 0; y < window.height; y += rows_at_once) {
    const int count = window.height - y < rows_at_once ? window.height - y : rows_at_once;
    const uint8_t* rows[rows_at_once];
    if (!decoder.rows(y, count, rows)) return false;
    for (int i = 0; i < count; ++i) pixels.insert(pixels.end(), rows[i], rows[i] + stride);
  }
  return true;
}

inline void compare(const Image& whole, Rect window, const std::vector<uint8_t>& pixels) {
  const size_t stride = static_cast<size_t>(window.width) * 4;
  for (int y = 0; y < window.height; ++y) {
    const uint8_t* found = &pixels[static_cast<size_t>(y) * stride];
    const uint8_t* expected =
        &whole.pixels[(static_cast<size_t>(window.y + y) * static_cast<size_t>(whole.width) +
                       static_cast<size_t>(window.x)) *
                      4];
    for (size_t at = 0; at < stride; ++at)  // the fourth byte of a pixel means nothing
      if (at % 4 != 3 && found[at] != expected[at]) fail("pixels unlike libjpeg-turbo's");
  }
}

}  // namespace fusionloader::fuzz
