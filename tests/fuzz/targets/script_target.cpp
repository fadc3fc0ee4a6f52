// Fuzz target: files of several scans, whose markers are read without libjpeg too. It is small
// enough for the memory sanitizer. Vectors must give the pixels of the scalar reference, and a
// window those of the whole image.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "initialized.hpp"
#include "input.hpp"
#include "jpeg/progressive_decoder.hpp"

namespace fusionloader::fuzz {
namespace {

// Larger images take time and show nothing more.
constexpr int most_pixels = 1 << 15;

// The pixels of a window, three bytes each; fewer where the file turns out to be damaged.
std::vector<uint8_t> decode(ProgressiveDecoder& decoder, const ScanScript& script, Rect window,
                            int denominator) {
  std::vector<uint8_t> pixels;
  if (!decoder.start(script, window, denominator)) return pixels;
  std::vector<uint8_t> row(static_cast<size_t>(window.width) * 4 + sample_slack);
  for (int y = 0; y < window.height && decoder.row(y, row.data()); ++y)
    for (size_t x = 0; x < static_cast<size_t>(window.width); ++x) {
      FUSIONLOADER_CHECK_INITIALIZED(&row[4 * x], 3);
      pixels.insert(pixels.end(), &row[4 * x], &row[4 * x] + 3);
    }
  return pixels;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz: other pixels %s\n", what);
  std::abort();
}

void expect_part(const std::vector<uint8_t>& part, Rect window, const std::vector<uint8_t>& whole,
                 int width) {
  for (size_t y = 0; y < static_cast<size_t>(window.height); ++y)
    for (size_t at = 0; at < 3 * static_cast<size_t>(window.width); ++at) {
      const size_t row = (static_cast<size_t>(window.y) + y) * static_cast<size_t>(width);
      if (part[3 * y * static_cast<size_t>(window.width) + at] !=
          whole[3 * (row + static_cast<size_t>(window.x)) + at])
        fail("than the whole image has");
    }
}

void run(Input input) {
  const SimdLevel level = any_level(input);
  const int denominator = 1 << (input.byte() & 3);
  Input place(input.rest().data, input.rest().size < 8 ? input.rest().size : 8);
  for (int i = 0; i < 8; ++i) input.byte();

  ScanScript script;
  if (!script.read(input.rest()) || !ProgressiveDecoder::supports(script, denominator)) return;
  const Frame& frame = script.frame;
  if (int64_t{frame.width} * frame.height > most_pixels) return;
  const int width = (frame.width - 1) / denominator + 1;
  const int height = (frame.height - 1) / denominator + 1;
  const Rect window = any_window(place, width, height);

  ProgressiveDecoder decoder(level), plain(SimdLevel::scalar);
  const std::vector<uint8_t> part = decode(decoder, script, window, denominator);
  if (decode(plain, script, window, denominator) != part) fail("without vectors");
  // The window may be sound where the whole image is not.
  const std::vector<uint8_t> whole = decode(decoder, script, {0, 0, width, height}, denominator);
  const size_t all = 3 * static_cast<size_t>(width) * static_cast<size_t>(height);
  const size_t wanted = 3 * static_cast<size_t>(window.width) * static_cast<size_t>(window.height);
  if (whole.size() != all) return;
  if (part.size() != wanted) fail("as the whole image is sound, and a window is not");
  expect_part(part, window, whole, width);
}

}  // namespace
}  // namespace fusionloader::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusionloader::fuzz::run({data, size});
  return 0;
}
