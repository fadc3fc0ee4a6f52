#pragma once
// Where the entropy decoder stood here and there in a scan, so that it can start in the middle.
#include <array>
#include <cstddef>
#include <cstdint>

namespace fusionloader {

// MCUs from one entry to the next. Less brings little more and takes more memory.
constexpr size_t entry_step = 8;

// In front of an MCU.
struct ScanEntry {
  uint32_t bit;  // its first, in the data without stuffed bytes and markers
  std::array<int16_t, 3> predictors;
  uint16_t unused;
};
static_assert(sizeof(ScanEntry) == 12);

// Entry i stands in front of MCU (i + 1) * entry_step. Whoever reads with an index that is not the
// file's gets wrong pixels, but touches no memory that it should not.
struct EntryIndex {
  const ScanEntry* entries = nullptr;
  size_t count = 0;
};

}  // namespace fusionloader
