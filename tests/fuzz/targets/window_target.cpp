// Fuzz target: windows of a file by our decoder against all of it by libjpeg-turbo. Either the
// pixels are the same, or ours leaves the file to others.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <jpeglib.h>

#include "input.hpp"
#include "jpeg/region_decoder.hpp"
#include "resize/kernels.hpp"  // rows_at_once

namespace fusionloader::fuzz {
namespace {

// Larger images take time and show nothing more.
constexpr int most_pixels = 1 << 16;

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;  // RGBX
};

struct Errors {
  jpeg_error_mgr base;
  std::jmp_buf escape;
};

// False where libjpeg refuses. Warnings are nothing to Pillow, whose pixels are the measure.
bool decode_all(const uint8_t* data, size_t size, int denominator, Image& image) {
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

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// The window's pixels as RGBX rows; false where the file is left to others.
bool decode_window(RegionDecoder& decoder, Rect window, int denominator, EntryIndex index,
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

void compare(const Image& whole, Rect window, const std::vector<uint8_t>& pixels) {
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

void run(Input input) {
  const SimdLevel level = any_level(input);
  const int choice = input.byte();
  const int denominator = 1 << (choice & 3);
  Input place(input.rest().data, input.rest().size < 8 ? input.rest().size : 8);
  for (int i = 0; i < 8; ++i) input.byte();
  const ByteView file = input.rest();

  const bool strict = !(choice & 16);
  RegionDecoder decoder(level, BaselineDecoder::own, strict);
  int width = 0, height = 0;
  if (!read_image_size(decoder, file, width, height)) return;
  if (static_cast<int64_t>(width) * height > most_pixels) return;
  const auto reduced = [denominator](int side) { return (side - 1) / denominator + 1; };
  const Rect window = any_window(place, reduced(width), reduced(height));
  std::vector<uint8_t> pixels, again;
  std::vector<ScanEntry> entries;
  const bool indexed =
      denominator == 1 && (choice & 4) && decoder.open(file) && decoder.record(entries);
  if (!decoder.open(file)) fail("a file that was open is refused");
  const bool decoded = decode_window(decoder, window, denominator, {}, pixels);
  const bool own = decoder.started() == BaselineDecoder::own;
  if (decoded) {
    Image whole;
    const bool sound = decode_all(file.data, file.size, denominator, whole);
    // libjpeg's partial decoding does not see damage beyond the window.
    if (own && strict && !sound) fail("decoded what libjpeg-turbo refuses");
    if (sound) compare(whole, window, pixels);
  }
  if (indexed) {
    if (!decoder.open(file)) fail("a file that was open is refused");
    const EntryIndex index{entries.data(), entries.size()};
    const bool also = decode_window(decoder, window, denominator, index, again);
    if (also != decoded || (also && again != pixels)) fail("other pixels with its index");
  }
  if (choice & 8) {
    // Another file's index: the pixels mean nothing.
    std::vector<ScanEntry> strange(static_cast<size_t>(choice));
    if (file.size >= strange.size() * sizeof(ScanEntry))
      std::memcpy(strange.data(), file.data, strange.size() * sizeof(ScanEntry));
    if (decoder.open(file))
      decode_window(decoder, window, 1, {strange.data(), strange.size()}, again);
  }
  decoder.close();
}

}  // namespace
}  // namespace fusionloader::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusionloader::fuzz::run({data, size});
  return 0;
}
