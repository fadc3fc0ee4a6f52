#pragma once
// Decodes a window of a JPEG whose coefficients come in several scans, to libjpeg-turbo's pixels.
//
// How it works. A progressive file codes coefficients band by band and bit by bit, so every scan
// has to be read before there is a pixel. The values of blocks outside the window are not kept; one
// word a block tells which of its coefficients are not zero, since the bits that refine those have
// to be stepped over. Of a scan nothing is read behind the window's last row of MCUs. Then the
// window's blocks are transformed to samples band by band, as window_decoder.hpp has it; blocks
// that have no AC coefficient are filled with their mean.
//
// Why the pixels are the same. Coefficients are what libjpeg makes of the same scans as long as
// these are as an encoder writes them, and complete: of an incomplete file libjpeg would smooth
// blocks. All that follows is what baseline files undergo.
//
// Damaged files. As in window_decoder.hpp: what no encoder would have written makes a method return
// false, and Pillow decodes the file from its beginning. Beyond the conditions there, scans must
// give each bit once and in order, and runs of blocks must end where their scan does.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/coefficients.hpp"
#include "jpeg/scan_reader.hpp"
#include "jpeg/scan_script.hpp"
#include "jpeg/window_rows.hpp"

namespace fusionloader {

// Not thread-safe.
class ProgressiveDecoder {
 public:
  explicit ProgressiveDecoder(SimdLevel level) : rows_(level) {}

  // Whether a script is one whose image is decoded here, at 1/`denominator` of its size.
  static bool supports(const ScanScript& script, int denominator = 1);

  // Reads all scans. `window` lies inside the image of that size.
  bool start(const ScanScript& script, Rect window, int denominator);
  // Row `y` of the window as RGBX pixels, `y` ascending. Up to sample_slack bytes behind them may
  // be written.
  bool row(int y, uint8_t* out);

  void release_large_buffers();

 private:
  void place(const Frame& frame);
  bool decode_band(int band);
  void transform(size_t component, int band, int row, int32_t& magnitude);

  WindowRows rows_;
  ScanReader reader_;
  std::array<CoefficientPlane, 3> planes_;
  bool zero_ = true;    // all of their blocks
  int bands_left_ = 0;  // that are not transformed
  std::vector<BlockTarget> targets_;
};

}  // namespace fusionloader
