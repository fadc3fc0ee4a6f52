#include "queue/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace fusionloader {

namespace {

// Whether a page of a private mapping of a file was copied because this process wrote to it. Where
// the system does not tell, it may have been. Dropping pages is not free: they are faulted in
// again.
bool has_written_pages(const uint8_t* data, size_t bytes) {
  constexpr uint64_t kPage = 4096, kOfFile = uint64_t{1} << 61, kThere = uint64_t{3} << 62;
  if (sysconf(_SC_PAGESIZE) != static_cast<long>(kPage)) return true;
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  std::array<uint64_t, 4096> pages;  // in swap or in memory, and whose
  bool written = false;
  size_t left = (bytes + kPage - 1) / kPage;
  off_t at = static_cast<off_t>(reinterpret_cast<uintptr_t>(data) / kPage * sizeof(uint64_t));
  while (left > 0 && !written) {
    const size_t wanted = std::min(left, pages.size());
    const ssize_t got = pread(fd, pages.data(), wanted * sizeof(uint64_t), at);
    if (got != static_cast<ssize_t>(wanted * sizeof(uint64_t))) {
      written = true;
      break;
    }
    for (size_t page = 0; page < wanted; ++page)
      written |= (pages[page] & kThere) != 0 && (pages[page] & kOfFile) == 0;
    left -= wanted;
    at += got;
  }
  close(fd);
  return written;
}

void require_bytes(int fd, uint64_t offset, size_t bytes) {
  struct stat info{};
  if (fstat(fd, &info) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  const auto there = static_cast<uint64_t>(info.st_size);
  if (offset <= there && bytes <= there - offset) return;
  throw MappingMismatch::version("memory of " + std::to_string(there) + " bytes, of which " +
                                 std::to_string(bytes) + " from byte " + std::to_string(offset) +
                                 " on are needed");
}

bool is_sealed_against_shrinking(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

// Where memfd_create is refused, memory is a file of /dev/shm without a name
// (fusionloader/system/limits/anonymous_memory.py), which has no seals. Only processes of this user
// and root can have it open.
bool is_unnamed_in_dev_shm(int fd) {
  struct stat file{}, folder{};
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_nlink == 0 &&
         (file.st_uid == geteuid() || file.st_uid == 0) && (file.st_mode & 077) == 0 &&
         stat("/dev/shm", &folder) == 0 && file.st_dev == folder.st_dev;
}

}  // namespace

MappingMismatch MappingMismatch::version(const std::string& what) {
  return MappingMismatch("found " + what +
                         ": another version of fusionloader made it; end all processes that share "
                         "it, and start them with one version");
}

void Mapping::require_private(int fd) {
  if (!is_sealed_against_shrinking(fd) && !is_unnamed_in_dev_shm(fd))
    throw MappingMismatch::version("memory that is not sealed against shrinking");
}

Mapping::Mapping(int fd, uint64_t offset, size_t bytes, bool copy_on_write, Backing backing)
    : data_(nullptr), bytes_(bytes) {
  if (backing == Backing::memory) require_private(fd);
  require_bytes(fd, offset, bytes);
  const int flags = copy_on_write ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  data_ = static_cast<uint8_t*>(at);
}

void Mapping::populate() const {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
  madvise(data_, bytes_, MADV_HUGEPAGE);
  madvise(data_, bytes_, populate_write);
}

void Mapping::discard_writes() const {
  if (has_written_pages(data_, bytes_)) madvise(data_, bytes_, MADV_DONTNEED);
}

void Mapping::copy_all() const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes_; at += page) {
    // A write of what is there already: the system copies the page, and no write of another thread
    // is lost.
    uint8_t there = __atomic_load_n(data_ + at, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(data_ + at, &there, there, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  }
}

void Mapping::make_private() const {
  void* copy = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  std::memcpy(copy, data_, bytes_);
  // In one step: the addresses are never without memory.
  if (mremap(copy, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) != MAP_FAILED) return;
  const int error = errno;
  munmap(copy, bytes_);
  throw std::system_error(error, std::generic_category(), "mremap");
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace fusionloader
