#pragma once
#include <cstdio>

#include <jpeglib.h>

#include "jpeg/scan.hpp"

namespace fusionloader {

// The scan that libjpeg stopped at after reading the header; false where it is none that holds the
// whole image in baseline coding.
bool describe_scan(const jpeg_decompress_struct& info, BaselineScan& scan);

}  // namespace fusionloader
