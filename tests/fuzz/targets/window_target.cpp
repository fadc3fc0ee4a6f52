// Fuzz target: windows of a file by our decoder against all of it by libjpeg-turbo. Either the
// pixels are the same, or ours leaves the file to others. Nor does libjpeg-turbo refuse a file of
// which we say that it never does.
#include <cstring>
#include <vector>

#include "input.hpp"
#include "jpeg/scan_script.hpp"
#include "libjpeg_pixels.hpp"

namespace fusionloader::fuzz {
namespace {

// Larger images take time and show nothing more.
constexpr int most_pixels = 1 << 16;

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
  Image whole;
  const bool sound = decode_all(file.data, file.size, denominator, whole);
  if (!sound && ScanScript().read(file)) fail("refused what is said to be never refused");
  std::vector<uint8_t> pixels, again;
  std::vector<ScanEntry> entries;
  const bool indexed =
      denominator == 1 && (choice & 4) && decoder.open(file) && decoder.record(entries);
  if (!decoder.open(file)) fail("a file that was open is refused");
  const bool decoded = decode_window(decoder, window, denominator, {}, pixels);
  if (decoded) {
    if (strict && !sound) fail("decoded what libjpeg-turbo refuses");
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
