// Fuzz target: what stands around libwebp. The pixels of a file are those that libwebp gives by its
// simplest function.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <webp/decode.h>

#include "image/rows.hpp"
#include "input.hpp"
#include "webp/webp_decoder.hpp"

namespace fusionloader::fuzz {
namespace {

// Larger images take time and show nothing more.
constexpr int most_pixels = 1 << 16;

void run(ByteView file) {
  WebpDecoder decoder;
  if (!decoder.open(file)) return;
  const int width = decoder.width(), height = decoder.height();
  if (static_cast<int64_t>(width) * height > most_pixels) return;
  if (!decoder.start({0, 0, width, height}, 1, {})) return;
  int other_width = 0, other_height = 0;
  uint8_t* expected = WebPDecodeRGBA(file.data, file.size, &other_width, &other_height);
  if (!expected || other_width != width || other_height != height) std::abort();
  const auto bytes = 4 * static_cast<size_t>(width);
  for (int y = 0; y < height; ++y) {
    const uint8_t* row = nullptr;
    if (!decoder.rows(y, 1, &row) ||
        std::memcmp(row, expected + static_cast<size_t>(y) * bytes, bytes) != 0)
      std::abort();
  }
  WebPFree(expected);
  decoder.close();
}

}  // namespace
}  // namespace fusionloader::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusionloader::fuzz::run({data, size});
  return 0;
}
