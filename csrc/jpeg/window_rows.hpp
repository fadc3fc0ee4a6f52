#pragma once
// Bands of samples in, rows of RGBX pixels out: what all decoders of windows share.
//
// A band is a row of MCUs. The samples of three of them are kept, as the chroma of a row of pixels
// is interpolated with the row of samples above it or below.
//
// Why the pixels are libjpeg-turbo's: samples beside the window are there too where interpolation
// reads them; at the image's edges the outermost samples are repeated, as libjpeg does. supports()
// refuses layouts that libjpeg treats in another way.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/block.hpp"
#include "jpeg/inverse_dct.hpp"
#include "jpeg/reduced_dct.hpp"
#include "jpeg/sample_rows.hpp"
#include "jpeg/scan.hpp"

namespace fusionloader {

class WindowRows {
 public:
  explicit WindowRows(SimdLevel level);

  // Whether the layout of a frame is one that is decoded here, at 1/`denominator` of its size.
  static bool supports(const Frame& frame, int denominator = 1);

  // Finds the MCUs that the window needs, and makes room for their samples.
  void place(const Frame& frame, Rect window, int denominator);
  // Row `y` of the window as RGBX pixels, `y` ascending. Up to sample_slack bytes behind them may
  // be written. `decode_band` is called for bands in order, and stores their samples at target();
  // where it returns false, this does.
  template <class DecodeBand>
  bool row(int y, uint8_t* out, DecodeBand decode_band) {
    const Bands needed = bands_of_row(y);
    for (int band = std::max(needed.first, last_band_ + 1); band <= needed.last; ++band) {
      if (!decode_band(band)) return false;
      extend(band);
      last_band_ = band;
    }
    convert(y, out);
    return true;
  }

  // What the window needs: MCUs of a band, and bands.
  int mcus_across() const { return mcus_across_; }
  int first_mcu() const { return first_mcu_; }
  int end_mcu() const { return end_mcu_; }
  int first_band() const { return bands_of_row(0).first; }
  int end_band() const { return bands_of_row(window_.height - 1).last + 1; }

  int components() const { return count_; }
  int blocks_across(size_t component) const { return planes_[component].h; }  // of an MCU
  int blocks_down(size_t component) const { return planes_[component].v; }
  // Samples at a side of what becomes of a block.
  int side(size_t component) const { return planes_[component].side; }
  InverseDct inverse_dct(size_t component) const { return planes_[component].inverse_dct; }
  // Of the window's first block in row `row` of a band's blocks.
  BlockTarget target(size_t component, int band, int row);

  void release_large_buffers();

 private:
  struct Bands {
    int first, last;
  };
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

  Bands bands_of_row(int y) const;
  void extend(int band);
  void convert(int y, uint8_t* out);
  const uint8_t* chroma_row(Plane& plane, int y, uint8_t* out);

  const SampleKernels& kernels_;
  const SimdLevel level_;
  int count_ = 0;  // of planes
  std::array<Plane, 3> planes_{};
  Rect window_{};
  int wider_ = 1, higher_ = 1;                 // luma planes than chroma planes, in samples
  int first_chroma_ = 0, chroma_columns_ = 0;  // that the window needs
  int mcus_across_ = 0, first_mcu_ = 0, end_mcu_ = 0;
  int last_band_ = -1;  // decoded
  std::array<std::vector<uint8_t>, 2> chroma_;
};

}  // namespace fusionloader
