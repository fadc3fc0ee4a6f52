#include "queue/mapping.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace fusionloader {

Mapping::Mapping(int fd, uint64_t offset, size_t bytes) : data_(nullptr), bytes_(bytes) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  data_ = static_cast<uint8_t*>(at);
}

void Mapping::populate() const {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
  madvise(data_, bytes_, MADV_HUGEPAGE);
  madvise(data_, bytes_, populate_write);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace fusionloader
