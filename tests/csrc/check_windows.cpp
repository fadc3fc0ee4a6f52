// Program: windows of JPEG files by our decoder, at every level of this processor, against
// libjpeg-turbo, which also writes the files. Prints the levels; ends with 1 at the first
// difference, with 134 where pixels are others than libjpeg-turbo's.
#include <cstdlib>
#include <cstring>
#include <random>

#include "libjpeg_pixels.hpp"

namespace fusionloader::fuzz {
namespace {

std::mt19937 generator(1);

int between(int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(generator);
}

// Smooth colors, strong edges and noise.
std::vector<uint8_t> photo(int width, int height, int channels) {
  std::vector<uint8_t> pixels;
  const int noise = 1 << between(0, 7), edge = between(1, width);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int channel = 0; channel < channels; ++channel) {
        const int smooth = x * (channel + 1) + y * (3 - channel) + (x < edge ? 0 : 120);
        pixels.push_back(static_cast<uint8_t>((smooth + between(0, noise)) & 0xFF));
      }
  return pixels;
}

struct Layout {
  int h, v;  // how often luma has chroma's samples; h is 0 for grey
};

std::vector<uint8_t> encoded(Layout layout, int width, int height, int quality) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* file = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &file, &size);
  const bool grey = layout.h == 0;
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = grey ? 1 : 3;
  info.in_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  info.optimize_coding = between(0, 1) ? TRUE : FALSE;
  info.restart_interval = static_cast<unsigned>(between(0, 3));
  if (!grey) {
    info.comp_info[0].h_samp_factor = layout.h;
    info.comp_info[0].v_samp_factor = layout.v;
  }
  if (between(0, 1)) jpeg_simple_progression(&info);
  std::vector<uint8_t> pixels = photo(width, height, info.input_components);
  const size_t stride = static_cast<size_t>(width) * static_cast<size_t>(info.input_components);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = &pixels[stride * info.next_scanline];
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<uint8_t> result(file, file + size);
  std::free(file);
  return result;
}

Rect any_window(int width, int height) {
  const int x = between(0, width - 1), y = between(0, height - 1);
  return {x, y, between(1, width - x), between(1, height - y)};
}

void check(const std::vector<RegionDecoder*>& decoders, const std::vector<uint8_t>& file,
           Layout layout, int denominator) {
  Image whole;
  if (!decode_all(file.data(), file.size(), denominator, whole)) fail("libjpeg-turbo refuses");
  std::vector<uint8_t> pixels;
  for (const Rect window :
       {Rect{0, 0, whole.width, whole.height}, any_window(whole.width, whole.height)})
    for (RegionDecoder* decoder : decoders) {
      if (!decoder->open({file.data(), file.size()})) fail("the header is refused");
      if (!decode_window(*decoder, window, denominator, {}, pixels)) fail("a window is refused");
      const bool alike = layout.h == layout.v || layout.h == 0;
      const bool ours = decoder->started() == BaselineDecoder::own;
      // Made smaller in one direction alone: left to libjpeg.
      if (ours != (denominator == 1 || alike)) fail("decoded by the other decoder");
      compare(whole, window, pixels);
    }
}

}  // namespace
}  // namespace fusionloader::fuzz

// Arguments: of how many files of each layout.
int main(int count, char** arguments) {
  using namespace fusionloader;
  const int files = count > 1 ? std::atoi(arguments[1]) : 40;
  std::vector<std::unique_ptr<RegionDecoder>> owners;
  std::vector<RegionDecoder*> decoders;
  for (const SimdLevel level : simd_levels()) {
    if (level == SimdLevel::scalar) continue;
    owners.push_back(std::make_unique<RegionDecoder>(level, BaselineDecoder::own));
    decoders.push_back(owners.back().get());
    std::printf("%s\n", simd_level_name(level));
  }
  for (const fuzz::Layout layout : {fuzz::Layout{1, 1}, {2, 1}, {2, 2}, {1, 2}, {0, 0}})
    for (int i = 0; i < files; ++i) {
      // Five is the least width whose chroma libjpeg interpolates in every layout.
      const int width = fuzz::between(5, 150), height = fuzz::between(1, 150);
      const std::vector<uint8_t> file = fuzz::encoded(layout, width, height, fuzz::between(1, 100));
      for (const int denominator : {1, 2, 4, 8}) fuzz::check(decoders, file, layout, denominator);
    }
  return 0;
}
