#pragma once
// What workers read from files or derive from them, kept for all of them: filled once, never
// evicted, and never more than a given number of bytes. The records of all files are in shared
// memory; the data behind them is, too, or is on a disk and then read into a buffer. Laid out by
// fusionloader/cache/tiers/file_store.py.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "image/views.hpp"
#include "queue/mapping.hpp"
#include "worker/dataset_table.hpp"  // FileStamp
#include "worker/ledger.hpp"

namespace fusionloader {

class FileStore {
 public:
  // The object behind `fd`, which is duplicated; `bytes` of it are mapped, of a store on a disk
  // its records alone. Without a ledger nothing but the store's own capacity limits it. Throws
  // MappingMismatch where that is no store of this version, or not whole.
  FileStore(int fd, size_t bytes, Ledger* ledger = nullptr);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // The users of a store decide what `width` and `height` mean.
  struct Kept {
    ByteView data;
    uint32_t width, height;
  };

  bool on_disk() const { return header().medium == static_cast<uint64_t>(Medium::disk); }
  uint64_t items() const { return header().items; }
  // The bytes that it will have taken with data of so many more files, as large as those it has;
  // `guess` where it has none.
  uint64_t to_come(uint64_t files, uint64_t guess) const;
  // Leaves so much of the ledger to others.
  void leave(uint64_t bytes) { left_ = bytes; }
  // Whether the store has data of the file, current or not.
  bool holds(uint64_t item) const;
  // The file's data; nothing if the file has changed since. Of a store on a disk it is in `buffer`,
  // and nothing if it is damaged: the record is free then, to be filled again.
  std::optional<Kept> find(uint64_t item, FileStamp stamp, std::vector<uint8_t>& buffer) const;
  // Whether the record is this file's, of those that may be at `item`: filled, or being filled.
  bool is_of(uint64_t item, FileStamp stamp) const;
  // Whether the store has no data of the file, current or not, and room for `bytes` of it.
  bool lacks(uint64_t item, size_t bytes) const;
  // Makes this process the one that fills the record, with so many bytes. False if there is no
  // room, or if another was faster. `commit` or `abandon` follows; a process that dies in between
  // leaves a hole, which the next one fills.
  bool begin(uint64_t item, FileStamp stamp, size_t bytes);
  bool commit(uint64_t item, uint32_t width, uint32_t height, ByteView data);
  void abandon(uint64_t item);
  // Both at once. Data is never replaced.
  bool put(uint64_t item, FileStamp stamp, uint32_t width, uint32_t height, ByteView data);

 private:
  struct Header {
    uint64_t magic, medium;
    uint64_t items, records, data, capacity;  // `records` and `data`: offsets in the object
    std::atomic<uint64_t> used;               // of `capacity`, both in bytes
    std::atomic<uint64_t> kept;               // files
    std::atomic<uint64_t> closed;             // not 0: the system had no more room
    uint64_t unused;
    uint64_t spared;                // bytes of the system's that stay free
    std::atomic<uint64_t> damaged;  // files whose data on the disk was not what it was
    uint64_t fingerprint[4];        // of the files, for who opens a store on a disk
  };
  struct Record {
    std::atomic<uint64_t> state;
    uint64_t offset, bytes;      // of the file's data, in the store's
    std::atomic<uint64_t> room;  // that was taken at `offset`, by who began to fill the record
    std::atomic<uint64_t> file_bytes;
    std::atomic<int64_t> mtime_ns;
    uint32_t width, height;
    uint64_t checksum;  // of a store on a disk
  };
  static_assert(sizeof(Header) == 128 && sizeof(Record) == 64);
  static constexpr uint64_t magic = 0x3165726f74734c46;  // "FLstore1", of this layout
  // States of a record; any other is the identity of the process that fills it.
  static constexpr uint64_t empty = 0, filled = 1;

  static bool is_free(uint64_t state);
  Header& header() const { return *reinterpret_cast<Header*>(memory_.data()); }
  Record& record(uint64_t item) const {
    return reinterpret_cast<Record*>(memory_.data() + header().records)[item];
  }
  void check(int fd) const;
  bool has_room(size_t bytes) const;
  bool take_room(size_t bytes, uint64_t& offset);
  bool system_has_room(size_t bytes);
  bool write(uint64_t offset, ByteView data) const;
  bool read(uint64_t item, std::vector<uint8_t>& buffer, Kept& found) const;
  void forget(uint64_t item) const;
  static uint32_t checksum(uint64_t item, FileStamp stamp, const Kept& kept);
  uint64_t pages_end(uint64_t used) const;

  int fd_;
  Mapping memory_;
  Ledger* ledger_;
  uint64_t left_ = 0;     // of the ledger, to others
  uint64_t written_ = 0;  // since the system was last asked for room
};

}  // namespace fusionloader
