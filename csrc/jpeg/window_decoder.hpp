#pragma once
// Decodes a window of a baseline JPEG row by row, to libjpeg-turbo's pixels.
//
// How it works. Huffman codes say nothing of where a block begins, so the MCUs above the window and
// beside it have to be parsed. Of their AC coefficients only the lengths are looked up; their DC
// differences are added up, since later blocks are predicted from them. Where restart markers or an
// index allow it, MCUs are stepped over unparsed. The window's own MCUs are transformed to samples
// at once. Samples of three rows of MCUs are kept, as the chroma of a row of pixels is interpolated
// with the row of samples above it or below.
//
// Why the pixels are the same. All that follows the Huffman codes is integer arithmetic, with
// libjpeg's roundings: its accurate inverse transform or a reduced one, its interpolation of
// chroma, its conversion of colors. Samples beside the window are decoded too where interpolation
// reads them; at the image's edges the outermost samples are repeated, as libjpeg does. supports()
// refuses layouts that libjpeg treats in another way.
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
#include "jpeg/reduced_dct.hpp"
#include "jpeg/sample_rows.hpp"
#include "jpeg/scan.hpp"

namespace fusionloader {

// The pixels are Pillow's, bit for bit, however damaged the file is: what an encoder would not have
// written makes a method return false. Not thread-safe.
class WindowDecoder {
 public:
  // Unless it is `strict`, what lies behind the rows that are read may be missing or damaged.
  explicit WindowDecoder(SimdLevel level, bool strict = true);

  // Whether the layout of a scan is one that is decoded here, at 1/`denominator` of its size.
  static bool supports(const BaselineScan& scan, int denominator = 1);

  // `window` lies inside the image of that size. `scan`'s data and the index must stay valid while
  // rows are read.
  bool start(const BaselineScan& scan, Rect window, int denominator, EntryIndex index = {});
  // The index of a scan that is as an encoder writes it.
  bool record(const BaselineScan& scan, std::vector<ScanEntry>& entries);
  // Row `y` of the window as RGBX pixels, `y` ascending. Up to sample_slack bytes behind them may
  // be written.
  bool row(int y, uint8_t* out);

  void release_large_buffers();

 private:
  // One component's samples of the columns and the latest rows of MCUs, `bands` of them in turn.
  struct Plane {
    int h, v;  // blocks in an MCU
    int side;  // of a block, in samples
    InverseDct inverse_dct;
    int width, height;  // of the whole component, in samples
    int first_column;   // the sample that the stored columns begin with
    int columns;
    size_t stride;
    int band_bits;  // a band has 2 to the power of this rows
    std::vector<uint8_t> samples;
    Quantisers quantisers;

    uint8_t* row(int number);
    // Samples beyond the image's edges, where upsampling looks for neighbours.
    void extend(int band);
  };
  static constexpr int bands = 3;

  void place(const BaselineScan& scan, Rect window, int denominator);
  bool decode_band(int band);
  void transform(const BlockTarget* targets, int blocks, int32_t& magnitude);
  const uint8_t* chroma_row(Plane& plane, int y, uint8_t* out);

  const SampleKernels& kernels_;
  const SimdLevel level_;
  const bool strict_;
  McuReader reader_;
  int count_ = 0;  // of planes
  std::array<Plane, 3> planes_{};
  Rect window_{};
  int wider_ = 1, higher_ = 1;                 // luma planes than chroma planes, in samples
  int first_chroma_ = 0, chroma_columns_ = 0;  // that the window needs
  int mcus_across_ = 0, first_mcu_ = 0, end_mcu_ = 0;
  int last_band_ = -1;  // decoded
  std::array<Block, most_blocks> blocks_{};
  std::array<std::vector<uint8_t>, 2> chroma_;
};

}  // namespace fusionloader
