#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fusionloader {

// A descriptor is of other memory than was expected: too small, of another version, or not safe
// from being cut short.
class MappingMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // `what` was found where memory of this version was expected.
  static MappingMismatch version(const std::string& what);
};

// What is behind a descriptor: shared memory, which no other user can reach and nothing shrinks, or
// a file on a disk, of which that cannot be known.
enum class Backing { memory, file };

// A file descriptor's memory, mapped whole: shared, or with `copy_on_write` to read what others
// write and to keep what is written here to this process. Throws MappingMismatch if there is less
// of it than `bytes` from `offset` on: an access would raise SIGBUS.
class Mapping {
 public:
  Mapping(int fd, uint64_t offset, size_t bytes, bool copy_on_write = false,
          Backing backing = Backing::memory);
  ~Mapping();
  Mapping(Mapping&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Allocates all of it, in huge pages where the system gives such; leaves out what there is no
  // room for.
  void populate() const;
  // Of a mapping with copy_on_write: shows again what others write where this process has written.
  void discard_writes() const;
  // Of a mapping with copy_on_write: copies what was not written here, so that what others write
  // shows no more. Another thread may write meanwhile.
  void copy_all() const;
  // Replaces shared memory by a copy that is this process's, at the same addresses: what looks into
  // it stays valid, and is shared no more. A write of another thread meanwhile may be lost.
  void make_private() const;
  // Throws MappingMismatch unless the memory behind a descriptor is sealed against shrinking, or is
  // a file of /dev/shm without a name that belongs to this user: what there is where memfd_create
  // is refused. Processes that have such a file could shrink it; those of FusionLoader do not.
  static void require_private(int fd);

 private:
  uint8_t* data_;
  size_t bytes_;
};

}  // namespace fusionloader
