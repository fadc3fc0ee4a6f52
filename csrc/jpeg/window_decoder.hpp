#pragma once
// Decodes a window of a baseline JPEG row by row: entropy decoding that steps over what the window
// does not need, the inverse transform of its blocks alone, and no more than three rows of MCUs in
// memory.
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
