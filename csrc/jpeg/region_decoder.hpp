#pragma once
// Decodes a window of a JPEG, row by row, to the pixels that Pillow's decoder gives.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "image/decoder.hpp"
#include "image/entry_index.hpp"
#include "image/views.hpp"
#include "simd/level.hpp"

namespace fusionloader {

// Who decodes baseline and progressive files; all others are libjpeg's.
enum class BaselineDecoder { own, libjpeg };

// Ours without vectors is slower than libjpeg-turbo, which has its own for every processor.
inline BaselineDecoder faster_decoder(SimdLevel simd) {
  return simd == SimdLevel::scalar ? BaselineDecoder::libjpeg : BaselineDecoder::own;
}

// Every method that returns false leaves the file to Pillow: a format, color space or
// damage for which this decoder does not vouch. Damage that the window does not need counts where
// Pillow would raise for it, unless the decoder is not `strict` and decodes the file itself. Not
// thread-safe.
class RegionDecoder final : public ImageDecoder {
 public:
  RegionDecoder(SimdLevel simd, BaselineDecoder baseline, bool strict = true);
  ~RegionDecoder() override;

  // Reads the header. `encoded` must stay valid until close() or the next open().
  bool open(ByteView encoded) override;
  int width() const override;
  int height() const override;
  bool shrinks() const override { return true; }
  bool is_indexed() const override { return true; }
  // Who decodes what was started last.
  BaselineDecoder started() const;

  // The index of the opened file; false, and no entries, for a file that can have none: one that is
  // not decoded by ours, or damaged anywhere. To be called before start().
  bool record(std::vector<ScanEntry>& entries) override;
  // Prepares to decode at 1/`denominator` of the size (1, 2, 4 or 8; 1 is exact; both sides rounded
  // up), the window given in pixels of that size. The index is the file's, or empty; it must stay
  // valid. To be called once after open().
  bool start(Rect window, int denominator, EntryIndex index = {}) override;
  // Rows y .. y + count - 1 of the window as RGBX, count <= rows_at_once, with row_slack readable
  // bytes behind each. `y` is ascending; the rows are valid until the next call.
  bool rows(int y, int count, const uint8_t** rows) override;
  void close() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Width and height from the header alone; false if the file is not for this decoder.
bool read_image_size(ImageDecoder& decoder, ByteView encoded, int& width, int& height);

}  // namespace fusionloader
