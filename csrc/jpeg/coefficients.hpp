#pragma once
// The coefficients of one component, which the scans of a file give bit by bit.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/block.hpp"

namespace fusionloader {

// Of blocks outside the window no values are kept, but which of them are not zero: the length of
// what refines them depends on it.
struct CoefficientPlane {
  size_t h = 0, v = 0;           // blocks in an MCU
  size_t across = 0;             // blocks in a row, with those that fill up the last MCU
  size_t width = 0, height = 0;  // in blocks, without those
  size_t first_column = 0, end_column = 0, first_row = 0, end_row = 0;  // the window's blocks
  // Of the blocks of all rows up to the window's last: a bit for each coefficient that is not zero,
  // in order of coding from the lowest on. That of the first, DC, is never set.
  std::vector<uint64_t> nonzero;
  std::vector<Block> blocks;  // the window's

  size_t columns() const { return end_column - first_column; }
  uint64_t* nonzero_of(size_t row, size_t column) { return &nonzero[row * across + column]; }
  Block* block(size_t row, size_t column) {
    return &blocks[(row - first_row) * columns() + (column - first_column)];
  }
};

}  // namespace fusionloader
