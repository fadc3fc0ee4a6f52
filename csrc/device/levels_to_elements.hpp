#pragma once
// Rows of 8-bit levels become rows of a batch's elements, by the plan's own table: what arrives on
// a device is what a CPU worker would have written, in a quarter of the bytes on the way.
#include <cstddef>
#include <cstdint>

#include "arithmetic/host_and_device.hpp"

namespace fusionloader::device {

constexpr uint32_t most_rows_converted = 4096;

// A kernel's argument. `which` has a bit for each row that is to be converted.
struct LevelRows {
  uint64_t levels, elements, table;   // addresses of row 0 of both; channels x 256 elements
  uint32_t row_levels, plane_levels;  // of a row, of one of its channels
  uint32_t element_bytes, first_row;
  uint32_t which[most_rows_converted / 32];
};

template <class Element>
FUSIONLOADER_BOTH void convert_levels(const LevelRows& rows, uint32_t row, uint32_t first,
                                      uint32_t step) {
  const size_t begin = static_cast<size_t>(rows.first_row + row) * rows.row_levels;
  const uint8_t* levels = reinterpret_cast<const uint8_t*>(rows.levels) + begin;
  Element* elements = reinterpret_cast<Element*>(rows.elements) + begin;
  const Element* table = reinterpret_cast<const Element*>(rows.table);
  for (uint32_t i = first; i < rows.row_levels; i += step)
    elements[i] = table[i / rows.plane_levels * 256 + levels[i]];
}

// The levels first, first + step, ... of a row, counted from `first_row`.
FUSIONLOADER_BOTH void convert_row(const LevelRows& rows, uint32_t row, uint32_t first,
                                   uint32_t step) {
  if ((rows.which[row / 32] >> (row % 32) & 1) == 0) return;
  switch (rows.element_bytes) {
    case 2:
      return convert_levels<uint16_t>(rows, row, first, step);
    case 4:
      return convert_levels<uint32_t>(rows, row, first, step);
    case 8:
      return convert_levels<uint64_t>(rows, row, first, step);
  }
}

}  // namespace fusionloader::device
