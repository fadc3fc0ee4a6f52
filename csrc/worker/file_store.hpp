#pragma once
// What workers derive from files, in shared memory for all of them: filled once, never evicted,
// and never more than a given number of bytes. Laid out by fusionloader/shm/file_store.py.
#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "jpeg/scan.hpp"  // ByteView
#include "queue/queue.hpp"

namespace fusionloader {

// Size and modification time, by which a changed file is detected.
struct FileStamp {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
};
FileStamp stamp_of(const struct stat& info);

class FileStore {
 public:
  // The object of `bytes` bytes behind `fd`, which is duplicated.
  FileStore(int fd, size_t bytes);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // The users of a store decide what `width` and `height` mean.
  struct Kept {
    ByteView data;
    uint32_t width, height;
  };

  // Whether the store has data of the file, current or not.
  bool holds(uint64_t item) const;
  // The file's data; nothing if the file has changed since.
  std::optional<Kept> find(uint64_t item, FileStamp stamp) const;
  // Whether the store has no data of the file, current or not, and room for `bytes` of it.
  bool lacks(uint64_t item, size_t bytes) const;
  // False if the store is full, or if another worker was faster. Data is never replaced.
  bool put(uint64_t item, FileStamp stamp, uint32_t width, uint32_t height, ByteView data);

 private:
  struct Header {
    uint64_t items, records, data, capacity;  // the second and third: offsets in the object
    std::atomic<uint64_t> used;               // of `capacity`, both in bytes
    std::atomic<uint64_t> kept;               // files
    std::atomic<uint64_t> closed;             // not 0: the system had no more memory
    uint64_t spared;                          // bytes of /dev/shm that stay free
  };
  struct Record {
    std::atomic<uint64_t> state;
    uint64_t offset, bytes;  // of the file's data, in the store's
    uint64_t file_bytes;
    int64_t mtime_ns;
    uint32_t width, height;
  };
  static_assert(sizeof(Header) == 64 && sizeof(Record) == 48);
  // States of a record; any other is the pid of the process that fills it, shifted left by one.
  static constexpr uint64_t empty = 0, filled = 1;

  static bool is_free(uint64_t state);
  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  Record& record(uint64_t item) const {
    return reinterpret_cast<Record*>(memory_.data() + header().records)[item];
  }
  bool take_room(size_t bytes, uint64_t& offset);
  bool system_has_room(size_t bytes) const;
  bool write(uint64_t offset, ByteView data) const;

  int fd_;
  Mapping memory_;
};

}  // namespace fusionloader
