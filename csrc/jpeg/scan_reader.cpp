#include "jpeg/scan_reader.hpp"

#include <algorithm>
#include <cstdint>

namespace fusionloader {

ScanReader::ScanReader()
    : quick_shifts_(have_quick_shifts()), quick_deposits_(have_quick_deposits()) {}

bool ScanReader::read(const ScriptedScan& scan, const std::vector<HuffmanCode>& codes,
                      bool progressive, std::array<CoefficientPlane, 3>& planes) {
  if (!build_tables(scan, codes)) return false;
  data_.split(scan.data, scan.restart_interval > 0, false);
  const OpenScan open{scan, dc_, ac_, planes};
  if (!progressive) return read_as<Sequential>(open);
  if (scan.first == 0) return scan.high ? read_as<DcRefinement>(open) : read_as<DcFirst>(open);
  if (!scan.high) return read_as<AcFirst>(open);
  return quick_deposits_ ? read_as<AcRefinement<DepositSets>>(open)
                         : read_as<AcRefinement<LoopSets>>(open);
}

bool ScanReader::build_tables(const ScriptedScan& scan, const std::vector<HuffmanCode>& codes) {
  if (scan.first > 0 && scan.high > 0) return ac_[0].build_refinement(codes[scan.ac[0]]);
  // Values of more bits than are decoded here would have to be looked for one by one.
  const auto fits = [&](uint8_t symbol) { return (symbol & 15) + scan.low <= parts::most_bits; };
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    if (scan.first == 0 && scan.high == 0 && !dc_[i].build_dc(codes[scan.dc[i]])) return false;
    if (scan.last == 0) continue;
    const HuffmanCode& code = codes[scan.ac[i]];
    if (!std::all_of(code.symbols.begin(), code.symbols.end(), fits) || !ac_[i].build_ac(code))
      return false;
  }
  return true;
}

ScanReader::Grid ScanReader::grid_of(const OpenScan& open) {
  const CoefficientPlane& plane = open.planes[open.scan.components[0]];
  if (open.scan.count == 1) {
    const size_t down = std::min(plane.height, plane.end_row);
    return {plane.width,         down, plane.first_column, plane.end_column, plane.first_row,
            down == plane.height};
  }
  const size_t down = plane.end_row / plane.v;
  return {plane.across / plane.h,       down,
          plane.first_column / plane.h, plane.end_column / plane.h,
          plane.first_row / plane.v,    down * plane.v >= plane.height};
}

bool ScanReader::enter(size_t segment) {
  if (segment >= data_.segments().size()) return false;
  const Segment& bounds = data_.segments()[segment];
  segment_ = segment;
  segment_end_ = bounds.end * 8;
  cursor_ = {};
  cursor_.bits = data_.reader(bounds);
  return true;
}

bool ScanReader::regular() const {
  return !cursor_.irregular && cursor_.bits.position() <= segment_end_;
}

// Goes through the MCUs in pieces that end where a row, the window or a restart interval does.
template <class Part>
FUSIONLOADER_INLINE bool ScanReader::read_spans(const OpenScan& open) {
  const Grid grid = grid_of(open);
  const auto interval = static_cast<size_t>(open.scan.restart_interval);
  size_t left = interval ? interval : SIZE_MAX;
  if (!enter(0)) return false;
  for (size_t row = 0; row < grid.down; ++row) {
    for (size_t column = 0, end; column < grid.across; column = end) {
      if (left == 0) {
        if (!regular() || cursor_.run || !enter(segment_ + 1)) return false;
        left = interval;
      }
      const bool in_rows = row >= grid.first_row;
      const bool inside = in_rows && column >= grid.first_column && column < grid.end_column;
      end = inside                                  ? grid.end_column
            : in_rows && column < grid.first_column ? grid.first_column
                                                    : grid.across;
      end = std::min({end, grid.across, column + left});
      const Span span{row, column, end - column};
      left -= span.count;
      // Local, so that it stays in registers.
      ScanCursor cursor = cursor_;
      if (inside)
        Part::template read<true>(cursor, open, span);
      else
        Part::template read<false>(cursor, open, span);
      cursor_ = cursor;
    }
    // What goes on after the data's end would only take time.
    if (!regular()) return false;
  }
  return !grid.whole || cursor_.run == 0;
}

template <class Part>
FUSIONLOADER_BMI2 bool ScanReader::read_with_quick_shifts(const OpenScan& open) {
  return read_spans<Part>(open);
}

template <class Part>
bool ScanReader::read_as(const OpenScan& open) {
  return quick_shifts_ ? read_with_quick_shifts<Part>(open) : read_spans<Part>(open);
}

}  // namespace fusionloader
