#pragma once
// Decodes a window of a baseline JPEG row by row, to libjpeg-turbo's pixels.
//
// How it works. Huffman codes say nothing of where a block begins, so the MCUs above the window and
// beside it have to be parsed. Of their AC coefficients only the lengths are looked up; their DC
// differences are added up, since later blocks are predicted from them. Where restart markers or an
// index allow it, MCUs are stepped over unparsed. The window's own MCUs are transformed to samples
// at once. What becomes of samples is said in window_rows.hpp.
//
// Why the pixels are the same. All that follows the Huffman codes is integer arithmetic, with
// libjpeg's roundings: its accurate inverse transform or a reduced one, its interpolation of
// chroma, its conversion of colors.
//
// Damaged files. libjpeg replaces what it cannot decode, and goes on. This is not imitated: what no
// encoder would have written makes a method return false, and Pillow decodes the file from its
// beginning. An unknown code, a block too long, data that end too early, a value out of range are
// such; so is a block whose transform could leave 16 bits. They count in every MCU that is parsed;
// an index exists only for a scan that has none. In a restart interval that the window does not
// need they do not count, since nothing of it is used in another. A restart marker out of order
// ends what is decoded here. Data behind the last row that is read may be ignored: they cannot
// change a pixel in front of them. Nor does damage within a scan make libjpeg give up the image.
// What follows the scan could: a strict decoder refuses a scan that is not followed by the end of
// the image.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/block.hpp"
#include "jpeg/inverse_dct.hpp"
#include "jpeg/mcu_reader.hpp"
#include "jpeg/scan.hpp"
#include "jpeg/window_rows.hpp"

namespace fusionloader {

// The pixels are Pillow's, bit for bit, however damaged the file is: what an encoder would not have
// written makes a method return false. Not thread-safe.
class WindowDecoder {
 public:
  // Unless it is `strict`, what lies behind the rows that are read may be missing or damaged.
  explicit WindowDecoder(SimdLevel level, bool strict = true);

  // `scan` is of a layout that WindowRows supports, and `window` lies inside the image of that
  // size. `scan`'s data and the index must stay valid while rows are read.
  bool start(const BaselineScan& scan, Rect window, int denominator, EntryIndex index = {});
  // The index of a scan that is as an encoder writes it.
  bool record(const BaselineScan& scan, std::vector<ScanEntry>& entries);
  // Row `y` of the window as RGBX pixels, `y` ascending. Up to sample_slack bytes behind them may
  // be written.
  bool row(int y, uint8_t* out);

  void release_large_buffers();

 private:
  bool decode_band(int band);
  void transform(const BlockTarget* targets, int blocks, int32_t& magnitude);

  const bool strict_;
  McuReader reader_;
  WindowRows rows_;
  std::array<Block, most_blocks> blocks_{};
};

}  // namespace fusionloader
