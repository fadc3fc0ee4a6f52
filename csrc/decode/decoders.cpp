#include "decode/decoders.hpp"

namespace fusionloader {

Decoders::Decoders(SimdLevel simd, bool strict)
    : simd_(simd), jpeg_(simd, faster_decoder(simd), strict) {}

ImageDecoder* Decoders::open(ByteView encoded) {
  ImageDecoder* decoder = &jpeg_;
  if (PngDecoder::begins(encoded))
    decoder = png_ ? &*png_ : &png_.emplace(simd_);
  else if (WebpDecoder::begins(encoded))
    decoder = webp_ ? &*webp_ : &webp_.emplace();
  return decoder->open(encoded) ? decoder : nullptr;
}

}  // namespace fusionloader
