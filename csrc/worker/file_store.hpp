#pragma once
// What workers made of files, kept in shared memory for all of them: filled once, never evicted,
// and never more than a given number of bytes. Laid out by fusionloader/shm/file_store.py.
#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "jpeg/scan.hpp"  // ByteView
#include "queue/mapping.hpp"

namespace fusionloader {

// By which a file that was written anew is told from what it was.
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

  // `width` and `height` mean what those who fill the store want them to.
  struct Kept {
    ByteView data;
    uint32_t width, height;
  };

  // Whether something is kept of the file, in whatever state it was.
  bool holds(uint64_t item) const;
  // What is kept of the file; nothing if the file is another by now.
  std::optional<Kept> find(uint64_t item, FileStamp stamp) const;
  // Whether nothing is kept of the file, in whatever state, and `bytes` of it would have room.
  bool lacks(uint64_t item, size_t bytes) const;
  // False if the store is full, or if another worker was faster. What is kept never changes.
  bool put(uint64_t item, FileStamp stamp, uint32_t width, uint32_t height, ByteView data);

 private:
  struct Header {
    uint64_t items, records, data, capacity;  // the second and third: offsets in the object
    std::atomic<uint64_t> used;               // of `capacity`, both in bytes
    std::atomic<uint64_t> kept;               // files
    std::atomic<uint64_t> closed;             // not 0: the system had no more memory to give
    uint64_t spared;                          // bytes of the system's that are left to others
  };
  struct Record {
    std::atomic<uint64_t> state;
    uint64_t offset, bytes;  // of what is kept, in the data
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
