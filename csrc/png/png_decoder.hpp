#pragma once
// Decodes PNG files to the pixels that Pillow gives.
//
// All of a file is inflated and checked at the start, since Pillow raises for damage anywhere; rows
// and columns are then unfiltered as far as the window reaches. A stream that no encoder writes,
// with checksums that are right, may be refused by Pillow's zlib and accepted here (codes of unused
// lengths, for one): the pixels are those of the checksum.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "image/decoder.hpp"
#include "png/png_file.hpp"
#include "png/unfilter.hpp"

struct libdeflate_decompressor;

namespace fusionloader {

class PngDecoder final : public ImageDecoder {
 public:
  explicit PngDecoder(SimdLevel simd);
  ~PngDecoder() override;

  static bool begins(ByteView encoded) { return begins_as_png(encoded); }

  bool open(ByteView encoded) override { return read_png_file(encoded, file_); }
  int width() const override { return file_.width; }
  int height() const override { return file_.height; }
  bool start(Rect window, int denominator, EntryIndex index) override;
  bool rows(int y, int count, const uint8_t** rows) override;
  void close() override;

 private:
  bool inflate();
  void unfilter_next();
  bool spread(const uint8_t* bytes, uint8_t* pixels) const;
  uint8_t* line(int y);

  struct Free {
    void operator()(libdeflate_decompressor* made) const;
  };

  std::unique_ptr<libdeflate_decompressor, Free> inflater_;
  SimdLevel simd_;
  const UnfilterKernels& kernels_;
  PngFile file_;
  Rect window_{};
  int next_ = 0;  // the row that is unfiltered next
  size_t line_stride_ = 0, spread_stride_ = 0;
  std::vector<uint8_t> joined_;          // the data of several chunks
  std::vector<uint8_t> filtered_;        // the image's rows, each behind its filter's number
  std::vector<uint8_t> lines_, spread_;  // the last rows, as they are in the file and as pixels
};

}  // namespace fusionloader
