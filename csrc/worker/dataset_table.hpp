#pragma once
// A dataset in shared memory, once for all workers: the paths of files, ranges in them or 8-bit
// pixels, targets, and file sizes once workers have read them. Laid out by
// fusionloader/cache/tiers/dataset_table.py.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "queue/mapping.hpp"

namespace fusionloader {

// Size and modification time, by which a changed file is detected.
struct FileStamp {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
};

struct DatasetTable {
  static constexpr uint64_t version = 0x32656c6261744c46;  // "FLtable2", of this layout

  uint64_t magic;
  uint64_t bytes;  // of all of it
  uint64_t count;
  uint64_t path_offsets;  // uint64[files + 1] into the blob; each path ends with a zero byte
  uint64_t targets;       // int64[count]
  uint64_t sizes;         // atomic uint32[count]: bytes of the sample, 0 when not yet known
  uint64_t blob;          // the paths, or the images one after the other
  uint64_t height, width, channels;  // of the images; 0 where there are paths
  uint64_t ranges;  // uint64[count]: the file's number and 40 bits of offset; 0: a file a sample
  uint64_t stamps;  // FileStamp[files] of files with ranges, when these were found
  uint64_t remote;  // not 0: the files are URLs

  static constexpr int offset_bits = 40;

  // Throws MappingMismatch where the memory is no table of this version, or not all of one.
  static DatasetTable* of(const Mapping& memory) {
    auto* table = reinterpret_cast<DatasetTable*>(memory.data());
    if (memory.bytes() < sizeof(DatasetTable) || table->magic != version)
      throw MappingMismatch::version("no table of a dataset");
    if (memory.bytes() < table->bytes)
      throw MappingMismatch::version("a part of a dataset's table");
    return table;
  }

  bool holds_pixels() const { return channels != 0; }
  bool holds_ranges() const { return ranges != 0; }
  bool is_remote() const { return remote != 0; }
  const uint8_t* pixels(uint64_t item) const {
    return base() + blob + item * height * width * channels;
  }
  // The number of the sample's file.
  uint64_t file(uint64_t item) const { return holds_ranges() ? range(item) >> offset_bits : item; }
  // Of a sample's range; 0 of one that has a file.
  uint64_t offset(uint64_t item) const {
    return holds_ranges() ? range(item) & ((uint64_t{1} << offset_bits) - 1) : 0;
  }
  const char* path(uint64_t item) const {
    const auto* offsets = reinterpret_cast<const uint64_t*>(base() + path_offsets);
    return reinterpret_cast<const char*>(base() + blob + offsets[file(item)]);
  }
  // Of the file that has the sample's range.
  FileStamp file_stamp(uint64_t item) const {
    return reinterpret_cast<const FileStamp*>(base() + stamps)[file(item)];
  }
  // Of a sample's range: its own length, and its file's time.
  FileStamp range_stamp(uint64_t item) const {
    return {range_bytes(item), file_stamp(item).mtime_ns};
  }
  uint32_t range_bytes(uint64_t item) const {
    return reinterpret_cast<const uint32_t*>(base() + sizes)[item];
  }
  int64_t target(uint64_t item) const {
    return reinterpret_cast<const int64_t*>(base() + targets)[item];
  }
  std::atomic<uint32_t>& size(uint64_t item) {
    return reinterpret_cast<std::atomic<uint32_t>*>(const_cast<uint8_t*>(base()) + sizes)[item];
  }

 private:
  const uint8_t* base() const { return reinterpret_cast<const uint8_t*>(this); }
  uint64_t range(uint64_t item) const {
    return reinterpret_cast<const uint64_t*>(base() + ranges)[item];
  }
};

}  // namespace fusionloader
