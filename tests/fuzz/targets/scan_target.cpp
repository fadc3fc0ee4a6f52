// Fuzz target: the window decoder on scans of any description, without libjpeg in front of it. It
// is small enough for the memory sanitizer, which must know all code that writes what is read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "initialized.hpp"
#include "input.hpp"
#include "jpeg/window_decoder.hpp"

namespace fusionloader::fuzz {
namespace {

constexpr int longest_side = 200;

// As many codes of each length as the bytes say and libjpeg's header reader would pass on.
HuffmanCode any_code(Input& input, bool dc) {
  HuffmanCode code{};
  const bool usual = input.byte() & 1;
  int room = 256;
  for (size_t length = 1; length <= 16; ++length) {
    // Complete for nearly all bits: otherwise most scans end in their first block.
    const int count = usual ? (length >= 2 && length <= 12 ? 1 + (length == 12) : 0)
                            : std::min(input.byte(), room);
    code.counts[length] = static_cast<uint8_t>(count);
    room -= count;
  }
  for (int i = 0; i < 256 - room; ++i)
    code.symbols[static_cast<size_t>(i)] =
        static_cast<uint8_t>(usual && dc ? i % 12 : input.byte());
  return code;
}

BaselineScan any_scan(Input& input) {
  BaselineScan scan{};
  const int kind = input.byte();
  scan.count = kind & 1 ? 3 : 1;
  scan.width = 1 + input.byte() % longest_side;
  scan.height = 1 + input.byte() % longest_side;
  scan.restart_interval = kind & 2 ? input.byte() : 0;
  for (size_t i = 0; i < 3; ++i) {
    FrameComponent& component = scan.components[i];
    const bool subsampled = i == 0 && scan.count == 3;
    component.h = subsampled && kind & 4 ? 2 : 1;
    component.v = subsampled && kind & 8 ? 2 : 1;
    const auto quantiser = static_cast<uint16_t>(input.word() & 0xFFF);
    component.quantisers.fill(quantiser);
    component.quantisers[1] = static_cast<uint16_t>(input.word());
    scan.codes[i].dc = any_code(input, true);
    scan.codes[i].ac = any_code(input, false);
  }
  return scan;
}

// The pixels of a window, three bytes each; fewer where the scan turns out to be damaged.
std::vector<uint8_t> decode(WindowDecoder& decoder, const BaselineScan& scan, Rect window,
                            int denominator, EntryIndex index) {
  std::vector<uint8_t> pixels;
  if (!decoder.start(scan, window, denominator, index)) return pixels;
  std::vector<uint8_t> row(static_cast<size_t>(window.width) * 4 + sample_slack);
  for (int y = 0; y < window.height && decoder.row(y, row.data()); ++y)
    for (size_t x = 0; x < static_cast<size_t>(window.width); ++x) {
      FUSIONLOADER_CHECK_INITIALIZED(&row[4 * x], 3);
      pixels.insert(pixels.end(), &row[4 * x], &row[4 * x] + 3);
    }
  return pixels;
}

void expect_equal(const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected,
                  const char* what) {
  if (found == expected) return;
  std::fprintf(stderr, "fuzz: other pixels %s\n", what);
  std::abort();
}

void run(Input input) {
  const SimdLevel level = any_level(input);
  const int choice = input.byte();
  const int denominator = 1 << (choice & 3);
  BaselineScan scan = any_scan(input);
  if (!WindowRows::supports(scan, denominator)) return;
  const auto reduced = [denominator](int side) { return (side - 1) / denominator + 1; };
  const Rect window = any_window(input, reduced(scan.width), reduced(scan.height));
  scan.data = input.rest();

  WindowDecoder decoder(level), plain(SimdLevel::scalar);
  const std::vector<uint8_t> pixels = decode(decoder, scan, window, denominator, {});
  expect_equal(decode(plain, scan, window, denominator, {}), pixels, "without vectors");
  std::vector<ScanEntry> entries;
  if (denominator == 1 && decoder.record(scan, entries))
    expect_equal(decode(decoder, scan, window, 1, {entries.data(), entries.size()}), pixels,
                 "with the scan's index");
}

}  // namespace
}  // namespace fusionloader::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusionloader::fuzz::run({data, size});
  return 0;
}
