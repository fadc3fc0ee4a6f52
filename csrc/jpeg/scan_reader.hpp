#pragma once
// Reads the scans of a file that has several: each adds bits to the coefficients of some blocks.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/coefficients.hpp"
#include "jpeg/entropy_data.hpp"
#include "jpeg/huffman.hpp"
#include "jpeg/scan_parts.hpp"
#include "jpeg/scan_script.hpp"

namespace fusionloader {

class ScanReader {
 public:
  ScanReader();

  // Reads a scan of a progressive or a sequential script as far as the window's last block. False
  // where anything that it meets is not as an encoder writes it: unknown codes, values out of
  // range, coefficients beyond the scan's, runs across its end, too little data.
  bool read(const ScriptedScan& scan, const std::vector<HuffmanCode>& codes, bool progressive,
            std::array<CoefficientPlane, 3>& planes);

  void release_large_buffers() { data_.release_large_buffers(); }

 private:
  // The scan's MCUs up to the window's last row, and which of them hold blocks of the window.
  struct Grid {
    size_t across, down, first_column, end_column, first_row;
    bool whole;  // no MCUs follow
  };

  bool build_tables(const ScriptedScan& scan, const std::vector<HuffmanCode>& codes);
  static Grid grid_of(const OpenScan& open);
  bool enter(size_t segment);
  bool regular() const;
  template <class Part>
  bool read_spans(const OpenScan& open);
  template <class Part>
  bool read_with_quick_shifts(const OpenScan& open);
  template <class Part>
  bool read_as(const OpenScan& open);

  const bool quick_shifts_, quick_deposits_;
  EntropyData data_;
  std::array<ScanTable, 3> dc_, ac_;
  size_t segment_ = 0, segment_end_ = 0;  // the latter in bits
  ScanCursor cursor_;
};

}  // namespace fusionloader
