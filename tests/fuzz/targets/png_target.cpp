// Fuzz target: PNG files. The chunks' checksums are made right and rows are compressed here, so
// that bytes get to what stands behind these; the pixels of a window are those of the whole image
// without vectors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <libdeflate.h>

#include "image/rows.hpp"
#include "input.hpp"
#include "png/png_decoder.hpp"

namespace fusionloader::fuzz {
namespace {

using Bytes = std::vector<uint8_t>;

// Larger images take time and show nothing more.
constexpr int most_pixels = 1 << 16;

void append(Bytes& file, uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<uint8_t>(number >> shift));
}

void append_chunk(Bytes& file, const char* type, ByteView data) {
  append(file, static_cast<uint32_t>(data.size));
  const size_t begin = file.size();
  file.insert(file.end(), type, type + 4);
  file.insert(file.end(), data.data, data.data + data.size);
  append(file, libdeflate_crc32(0, &file[begin], file.size() - begin));
}

Bytes compressed(ByteView rows) {
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(1);
  Bytes stream(libdeflate_zlib_compress_bound(compressor, rows.size));
  stream.resize(
      libdeflate_zlib_compress(compressor, rows.data, rows.size, stream.data(), stream.size()));
  libdeflate_free_compressor(compressor);
  return stream;
}

// A file whose rows are the input's bytes, zeros behind them.
Bytes file_of_rows(Input& input) {
  Bytes file{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'}, header;
  const int width = 1 + input.byte() % 80, height = 1 + input.byte() % 40;
  constexpr uint8_t color_types[] = {0, 2, 3, 6};
  constexpr size_t samples[] = {1, 3, 1, 4};
  const auto kind = static_cast<size_t>(input.byte() % 4);
  append(header, static_cast<uint32_t>(width));
  append(header, static_cast<uint32_t>(height));
  for (const uint8_t each : {uint8_t{8}, color_types[kind], uint8_t{0}, uint8_t{0}, uint8_t{0}})
    header.push_back(each);
  append_chunk(file, "IHDR", {header.data(), header.size()});
  const Bytes palette(3 * (1 + static_cast<size_t>(input.byte())), 7);
  if (kind == 2) append_chunk(file, "PLTE", {palette.data(), palette.size()});
  const auto split = static_cast<size_t>(1 + input.word());
  const size_t row = 1 + samples[kind] * static_cast<size_t>(width);
  Bytes rows(row * static_cast<size_t>(height));
  const ByteView rest = input.rest();
  std::memcpy(rows.data(), rest.data, rest.size < rows.size() ? rest.size : rows.size());
  for (size_t at = 0; at < rows.size(); at += row) rows[at] %= filter_count + (rows[at] == 0xFF);
  const Bytes stream = compressed({rows.data(), rows.size()});
  for (size_t at = 0; at < stream.size(); at += split)
    append_chunk(file, "IDAT",
                 {&stream[at], stream.size() - at < split ? stream.size() - at : split});
  append_chunk(file, "IEND", {nullptr, 0});
  return file;
}

// The input as a file, with the right checksums of its chunks.
Bytes repaired(ByteView from) {
  Bytes file(from.data, from.data + from.size);
  size_t at = 8;
  while (at + 12 <= file.size()) {
    const size_t length = static_cast<size_t>(file[at]) << 24 |
                          static_cast<size_t>(file[at + 1]) << 16 |
                          static_cast<size_t>(file[at + 2]) << 8 | file[at + 3];
    if (length > file.size() - at - 12) break;
    Bytes checksum;
    append(checksum, libdeflate_crc32(0, &file[at + 4], length + 4));
    std::memcpy(&file[at + 8 + length], checksum.data(), 4);
    at += 12 + length;
  }
  return file;
}

// A window's pixels; none where the file is left to others.
Bytes decode(PngDecoder& decoder, ByteView file, Rect window) {
  Bytes pixels;
  if (!decoder.open(file) || !decoder.start(window, 1, {})) return pixels;
  for (int y = 0; y < window.height; y += rows_at_once) {
    const int count = window.height - y < rows_at_once ? window.height - y : rows_at_once;
    const uint8_t* rows[rows_at_once];
    if (!decoder.rows(y, count, rows)) return {};
    for (int i = 0; i < count; ++i)
      pixels.insert(pixels.end(), rows[i], rows[i] + 4 * static_cast<size_t>(window.width));
  }
  decoder.close();
  return pixels;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void run(Input input) {
  const SimdLevel level = any_level(input);
  const int choice = input.byte();
  Input place(input.rest().data, input.rest().size < 8 ? input.rest().size : 8);
  for (int i = 0; i < 8; ++i) input.byte();
  const Bytes file = choice & 1 ? file_of_rows(input) : repaired(input.rest());
  const ByteView view{file.data(), file.size()};

  PngDecoder decoder(level), plain(SimdLevel::scalar);
  if (!decoder.open(view)) return;
  const int width = decoder.width(), height = decoder.height();
  if (static_cast<int64_t>(width) * height > most_pixels) return;
  const Rect window = any_window(place, width, height);
  const Bytes whole = decode(plain, view, {0, 0, width, height});
  const Bytes found = decode(decoder, view, window);
  if (whole.empty()) return;  // a palette may lack colors outside of the window
  if (found.empty()) fail("a window is refused, and the whole is not");
  const auto bytes = 4 * static_cast<size_t>(window.width);
  for (int y = 0; y < window.height; ++y) {
    const auto row = static_cast<size_t>(window.y + y) * static_cast<size_t>(width);
    const uint8_t* expected = &whole[4 * (row + static_cast<size_t>(window.x))];
    for (size_t at = 0; at < bytes; ++at)  // the fourth byte may mean nothing
      if (at % 4 != 3 && found[static_cast<size_t>(y) * bytes + at] != expected[at])
        fail("other pixels in a window");
  }
}

}  // namespace
}  // namespace fusionloader::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusionloader::fuzz::run({data, size});
  return 0;
}
