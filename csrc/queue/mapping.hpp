#pragma once
#include <cstddef>
#include <cstdint>

namespace fusionloader {

// A file descriptor's memory, mapped whole: shared, or with `copy_on_write` to read what others
// write and to keep what is written here to this process.
class Mapping {
 public:
  Mapping(int fd, uint64_t offset, size_t bytes, bool copy_on_write = false);
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

 private:
  uint8_t* data_;
  size_t bytes_;
};

}  // namespace fusionloader
