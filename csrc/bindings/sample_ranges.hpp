#pragma once
// Where a sample of a table is, as fusionloader/cache/range_reading.py takes it.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>

#include "worker/dataset_table.hpp"

namespace fusionloader {

// Path, offset, bytes of the range, and of its file the bytes and the time; of a sample that has a
// file all numbers are 0.
using SampleRange = std::tuple<pybind11::bytes, uint64_t, uint64_t, uint64_t, int64_t>;

inline SampleRange range_of(const DatasetTable& table, uint64_t item) {
  if (!table.holds_ranges()) return {pybind11::bytes(table.path(item)), 0, 0, 0, 0};
  const FileStamp file = table.file_stamp(item);
  return {pybind11::bytes(table.path(item)), table.offset(item), table.range_bytes(item),
          file.bytes, file.mtime_ns};
}

}  // namespace fusionloader
