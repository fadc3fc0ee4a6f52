#include "jpeg/pillow_header.hpp"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

#include "jpeg/scan_script.hpp"

namespace fusionloader {
namespace {

using namespace std::string_view_literals;

constexpr uint8_t begin_of_scan = 0xDA, jfif = 0xE0, exif = 0xE1, profile = 0xE2, photoshop = 0xED,
                  adobe = 0xEE;

bool begins_with(ByteView body, std::string_view with) {
  return body.size >= with.size() && std::memcmp(body.data, with.data(), with.size()) == 0;
}

ByteView behind(ByteView body, size_t bytes) { return {body.data + bytes, body.size - bytes}; }

size_t word(const uint8_t* at) { return static_cast<size_t>(at[0] << 8 | at[1]); }

// The numbers of Exif data.
struct Tiff {
  ByteView data;
  bool little;

  bool has(size_t at, size_t bytes) const { return at <= data.size && data.size - at >= bytes; }
  size_t number(size_t at, size_t bytes) const {
    size_t value = 0;
    for (size_t i = 0; i < bytes; ++i)
      value = value << 8 | data.data[little ? at + bytes - 1 - i : at + i];
    return value;
  }
};

// Whether Pillow reads the first directory without a warning, and a resolution without an error.
bool is_plain_exif(ByteView data) {
  const bool little = begins_with(data, "II*\0"sv);
  if (!little && !begins_with(data, "MM\0*"sv)) return false;
  // Of a value, by type: bytes, texts, and whole, rational and floating-point numbers.
  constexpr size_t sizes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8};
  constexpr size_t resolution = 0x011A, unit = 0x0128, of_short = 3, of_rational = 5;
  constexpr size_t bytes_of_entry = 12;
  const Tiff tiff{data, little};
  if (!tiff.has(0, 8)) return false;
  size_t at = tiff.number(4, 4), total = 0;
  if (!tiff.has(at, 2)) return false;
  const size_t entries = tiff.number(at, 2);
  at += 2;
  // Behind the entries is the offset of the next directory.
  if (!tiff.has(at, entries * bytes_of_entry + 4)) return false;
  for (size_t i = 0; i < entries; ++i, at += bytes_of_entry) {
    const size_t tag = tiff.number(at, 2), type = tiff.number(at + 2, 2);
    const size_t count = tiff.number(at + 4, 4);
    if (type < 1 || type >= std::size(sizes)) return false;
    if (tag == resolution && (type != of_rational || count != 1)) return false;
    if (tag == unit && (type != of_short || count != 1)) return false;
    const size_t bytes = count * sizes[type];
    if (bytes <= 4) continue;
    total += bytes;
    if (total > data.size || !tiff.has(tiff.number(at + 8, 4), bytes)) return false;
  }
  return true;
}

// Whether Pillow reads a Photoshop segment: it takes a name without checking that it is there.
bool has_names(ByteView body, size_t at) {
  while (begins_with(behind(body, at), "8BIM"sv)) {
    at += 6;
    if (at > body.size) return true;  // Pillow stops where numbers are cut off
    if (at == body.size) return false;
    at += size_t{1} + body.data[at];
    at += at & 1;
    if (at > body.size || body.size - at < 4) return true;
    const size_t bytes = word(body.data + at) << 16 | word(body.data + at + 2);
    at += 4 + bytes;
    at += at & 1;
    if (at > body.size) return true;
  }
  return true;
}

// What several segments say together.
struct Said {
  bool resolution = false;
  ByteView exif{};
};

bool reads_segment(uint8_t marker, ByteView body, Said& said) {
  if (marker == jfif && begins_with(body, "JFIF"sv)) {
    if (body.size < 7) return false;
    // A later segment changes nothing where it says less.
    said.resolution |= body.size >= 12 && (body.data[7] == 1 || body.data[7] == 2);
  } else if (marker == exif && begins_with(body, "Exif\0\0"sv)) {
    if (said.exif.data) return false;
    said.exif = behind(body, 6);
  } else if (marker == profile && begins_with(body, "ICC_PROFILE\0"sv)) {
    return body.size >= 14;
  } else if (marker == profile && begins_with(body, "MPF\0"sv)) {
    return false;
  } else if (marker == photoshop && begins_with(body, "Photoshop 3.0\0"sv)) {
    return has_names(body, 14);
  } else if (marker == adobe && begins_with(body, "Adobe"sv)) {
    return body.size >= 7;
  }
  return true;
}

}  // namespace

bool read_pillow_header(ByteView file, PillowHeader& header) {
  ScanScript script;
  if (!script.read(file)) return false;
  Said said;
  for (size_t at = 2;;) {
    // The script has read these segments: they are all there.
    const uint8_t marker = file.data[at + 1];
    if (marker == 0xFF) return false;  // filled up
    const size_t bytes = word(file.data + at + 2);
    const ByteView body{file.data + at + 4, bytes - 2};
    at += 2 + bytes;
    if (marker == begin_of_scan) {
      header = {script.frame.width, script.frame.height, script.frame.count, at};
      return said.resolution || !said.exif.data || is_plain_exif(said.exif);
    }
    if (!reads_segment(marker, body, said)) return false;
  }
}

}  // namespace fusionloader
