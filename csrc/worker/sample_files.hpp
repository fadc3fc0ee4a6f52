#pragma once
// Samples as they are in storage: a file each, or ranges of files, of which some are kept open.
#include <cstdint>
#include <optional>
#include <vector>

#include "image/views.hpp"
#include "worker/dataset_table.hpp"

struct stat;

namespace fusionloader {

FileStamp stamp_of(const struct stat& info);

class SampleFiles {
 public:
  ~SampleFiles();
  SampleFiles() = default;
  SampleFiles(const SampleFiles&) = delete;
  SampleFiles& operator=(const SampleFiles&) = delete;

  // Bytes of a sample; what is larger is left to the caller, whose Pillow reads of a file no more
  // than it needs. As MOST_ENCODED_BYTES of transforms/executors/native.py.
  static constexpr size_t largest = size_t{1} << 28;

  struct Read {
    ByteView encoded;  // until the next call
    FileStamp stamp;
  };
  // Nothing where the sample cannot be read. A file with ranges must be what it was when these were
  // found: whoever tells the user why looks again.
  std::optional<Read> read(const DatasetTable& table, uint64_t item);
  // The stamp of a sample as it is now; nothing where its file is gone, or has ranges and changed.
  std::optional<FileStamp> stamp(const DatasetTable& table, uint64_t item);

 private:
  // Files with ranges that stay open: few enough for any limit of a process, and enough for
  // samples that are shuffled among neighbouring shards.
  static constexpr size_t most_open = 32;
  // Of the buffer, for files that are a little larger than the last one.
  static constexpr size_t most_margin = size_t{1} << 24;
  struct Open {
    uint64_t file;
    int fd;
    uint64_t used;
  };

  std::optional<Read> read_whole(const char* path);
  bool read_into(int fd, uint64_t offset, size_t bytes);
  std::optional<int> unchanged(const DatasetTable& table, uint64_t item);
  Open* find(uint64_t file);
  Open* open_file(uint64_t file, const char* path);
  void close_file(Open* which);
  void close_oldest();

  std::vector<uint8_t> buffer_;
  std::vector<Open> open_;
  uint64_t uses_ = 0;
};

}  // namespace fusionloader
