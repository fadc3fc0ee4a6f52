#pragma once
// The decoder for a file, by the file's first bytes.
#include <optional>

#include "image/decoder.hpp"
#include "jpeg/region_decoder.hpp"
#include "png/png_decoder.hpp"
#include "simd/level.hpp"
#include "webp/webp_decoder.hpp"

namespace fusionloader {

class Decoders {
 public:
  // `strict` is RegionDecoder's.
  Decoders(SimdLevel simd, bool strict);

  // The decoder, open; none where the file is left to Pillow.
  ImageDecoder* open(ByteView encoded);

 private:
  SimdLevel simd_;
  RegionDecoder jpeg_;
  // Made when such a file comes: most plans see none.
  std::optional<PngDecoder> png_;
  std::optional<WebpDecoder> webp_;
};

}  // namespace fusionloader
