#pragma once
// The segments in front of the first scan, as Pillow's JpegImageFile reads them.
#include <cstddef>

#include "image/views.hpp"

namespace fusionloader {

struct PillowHeader {
  int width, height;
  int components;  // 1 or 3
  size_t end;      // of the first scan's header: where Pillow stops to read
};

// Whether Pillow opens and decodes a file without an error or a warning: it can be opened later
// then, when somebody asks for what its segments say. False for files that Pillow may refuse, and
// for some that it does not: those that ScanScript does not read, files of several pictures,
// resolutions that only Exif data of an unusual form tell.
bool read_pillow_header(ByteView file, PillowHeader& header);

}  // namespace fusionloader
