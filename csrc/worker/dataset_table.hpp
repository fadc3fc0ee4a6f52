#pragma once
// A dataset in shared memory, once for all workers: the paths of files or 8-bit pixels, targets,
// and file sizes once workers have read them. Laid out by fusionloader/shm/dataset_table.py.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fusionloader {

struct DatasetTable {
  uint64_t count;
  uint64_t path_offsets;  // uint64[count + 1] into the blob; each path ends with a zero byte
  uint64_t targets;       // int64[count]
  uint64_t sizes;         // atomic uint32[count]: bytes of the file, 0 when not yet known
  uint64_t blob;          // the paths, or the images one after the other
  uint64_t height, width, channels;  // of the images; 0 where there are paths

  bool holds_pixels() const { return channels != 0; }
  const uint8_t* pixels(uint64_t item) const {
    return base() + blob + item * height * width * channels;
  }
  const char* path(uint64_t item) const {
    const auto* offsets = reinterpret_cast<const uint64_t*>(base() + path_offsets);
    return reinterpret_cast<const char*>(base() + blob + offsets[item]);
  }
  int64_t target(uint64_t item) const {
    return reinterpret_cast<const int64_t*>(base() + targets)[item];
  }
  std::atomic<uint32_t>& size(uint64_t item) {
    return reinterpret_cast<std::atomic<uint32_t>*>(const_cast<uint8_t*>(base()) + sizes)[item];
  }

 private:
  const uint8_t* base() const { return reinterpret_cast<const uint8_t*>(this); }
};

}  // namespace fusionloader
