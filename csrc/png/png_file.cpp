#include "png/png_file.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include <libdeflate.h>

#include "image/decoder.hpp"  // most_decoded_pixels

namespace fusionloader {
namespace {

constexpr uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

// Pillow limits what texts and profiles may take in memory. Files that come near are left to it.
constexpr size_t most_about_image = 1 << 20, most_of_text = (1 << 20) - 1;
constexpr int most_compressed = 8;

uint32_t big_endian(const uint8_t* from) {
  return static_cast<uint32_t>(from[0]) << 24 | static_cast<uint32_t>(from[1]) << 16 |
         static_cast<uint32_t>(from[2]) << 8 | from[3];
}

struct Chunk {
  std::string_view type;
  ByteView data;
};

// Takes the first chunk off; false where there is no whole one, with the checksum that it names.
bool take_chunk(ByteView& rest, Chunk& chunk) {
  constexpr size_t around = 12;  // length, type and checksum
  if (rest.size < around) return false;
  const size_t length = big_endian(rest.data);
  if (length > INT32_MAX || length > rest.size - around) return false;
  const uint8_t* type = rest.data + 4;
  const uint8_t* data = rest.data + 8;
  if (libdeflate_crc32(0, type, length + 4) != big_endian(data + length)) return false;
  chunk = {{reinterpret_cast<const char*>(type), 4}, {data, length}};
  rest = {data + length + 4, rest.size - around - length};
  return true;
}

bool read_header(const Chunk& chunk, PngFile& file) {
  const uint8_t* from = chunk.data.data;
  if (chunk.type != "IHDR" || chunk.data.size != 13) return false;
  const uint32_t width = big_endian(from), height = big_endian(from + 4);
  // Image.open() looks at the number of pixels; sides like JPEG's are enough for everybody.
  if (width == 0 || height == 0 || width > UINT16_MAX || height > UINT16_MAX) return false;
  if (static_cast<uint64_t>(width) * height > most_decoded_pixels) return false;
  file.width = static_cast<int>(width);
  file.height = static_cast<int>(height);
  const int depth = from[8], compression = from[10], filters = from[11], interlaced = from[12];
  if (depth != 8 || compression != 0 || filters != 0 || interlaced != 0) return false;
  switch (from[9]) {
    case 0:
      file.color = PngColor::grey;
      return true;
    case 2:
      file.color = PngColor::rgb;
      return true;
    case 3:
      file.color = PngColor::palette;
      return true;
    case 6:
      file.color = PngColor::rgba;
      return true;
    default:
      return false;
  }
}

// The chunks that tell about the image, in front of its pixels or behind them.
class AboutImage {
 public:
  // Whether Pillow reads a chunk without raising, and the pixels do not depend on it.
  bool is_harmless(const Chunk& chunk) {
    total_ += chunk.data.size;
    if (total_ > most_about_image) return false;
    const std::string_view type = chunk.type;
    const size_t size = chunk.data.size;
    if (type == "gAMA") return size >= 4;
    if (type == "cHRM") return size >= 32;
    if (type == "sRGB") return size >= 1;
    if (type == "pHYs") return size >= 9;
    if (type == "tEXt" || type == "eXIf") return true;
    if (type == "iCCP" || type == "zTXt") return is_small_when_inflated(chunk.data);
    if (type == "iTXt") return is_plain_text(chunk.data);
    if (type == "tRNS" || type == "acTL" || type == "fcTL" || type == "fdAT") return false;
    // Pillow keeps others, if they are private, and passes over them.
    const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
    return type[0] >= 'a' && std::all_of(type.begin(), type.end(), is_letter);
  }

 private:
  struct Free {
    void operator()(libdeflate_decompressor* made) const { libdeflate_free_decompressor(made); }
  };

  // A name, 0, the method (0: deflate), and the rest.
  bool is_small_when_inflated(ByteView data) {
    const uint8_t* end = data.data + data.size;
    const uint8_t* name_end = std::find(data.data, end, uint8_t{0});
    if (end - name_end < 2 || name_end[1] != 0 || ++compressed_ > most_compressed) return false;
    if (!inflater_) inflater_.reset(libdeflate_alloc_decompressor());
    inflated_.resize(most_of_text);
    size_t size = 0;
    return inflater_ && libdeflate_zlib_decompress(
                            inflater_.get(), name_end + 2, static_cast<size_t>(end - name_end - 2),
                            inflated_.data(), inflated_.size(), &size) == LIBDEFLATE_SUCCESS;
  }

  // A keyword, 0, and whether what follows is compressed.
  static bool is_plain_text(ByteView data) {
    const uint8_t* end = data.data + data.size;
    const uint8_t* keyword_end = std::find(data.data, end, uint8_t{0});
    return end - keyword_end < 2 || keyword_end[1] == 0;
  }

  size_t total_ = 0;
  int compressed_ = 0;
  std::unique_ptr<libdeflate_decompressor, Free> inflater_;
  std::vector<uint8_t> inflated_;
};

bool read_palette(const Chunk& chunk, PngFile& file) {
  const size_t size = chunk.data.size;
  if (file.colors != 0 || size == 0 || size % 3 != 0 || size > file.palette.size()) return false;
  std::memcpy(file.palette.data(), chunk.data.data, size);
  file.colors = static_cast<int>(size / 3);
  return true;
}

}  // namespace

bool begins_as_png(ByteView encoded) {
  return encoded.size >= sizeof signature &&
         std::memcmp(encoded.data, signature, sizeof signature) == 0;
}

bool read_png_file(ByteView encoded, PngFile& file) {
  file.colors = 0;
  file.data.clear();
  if (!begins_as_png(encoded)) return false;
  ByteView rest{encoded.data + sizeof signature, encoded.size - sizeof signature};
  Chunk chunk;
  if (!take_chunk(rest, chunk) || !read_header(chunk, file)) return false;
  AboutImage about;
  bool behind_data = false;
  while (take_chunk(rest, chunk)) {
    if (chunk.type == "IDAT") {
      if (behind_data || chunk.data.size == 0) return false;
      file.data.push_back(chunk.data);
      continue;
    }
    behind_data = !file.data.empty();
    if (chunk.type == "IEND")  // Pillow reads no further, whatever comes
      return behind_data && chunk.data.size == 0 &&
             (file.color != PngColor::palette || file.colors != 0);
    if (chunk.type == "PLTE" ? behind_data || !read_palette(chunk, file)
                             : !about.is_harmless(chunk))
      return false;
  }
  return false;
}

}  // namespace fusionloader
