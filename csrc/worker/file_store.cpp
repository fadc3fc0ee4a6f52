#include "worker/file_store.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace fusionloader {
namespace {

// Each file's data begins at a cache line.
constexpr uint64_t alignment = 64;

uint64_t rounded_up(uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

int duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "dup");
  return copy;
}

}  // namespace

FileStamp stamp_of(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

FileStore::FileStore(int fd, size_t bytes) : fd_(duplicate(fd)), memory_(fd, 0, bytes) {}
FileStore::~FileStore() { close(fd_); }

bool FileStore::holds(uint64_t item) const {
  return item < header().items && record(item).state.load(std::memory_order_acquire) == filled;
}

std::optional<FileStore::Kept> FileStore::find(uint64_t item, FileStamp stamp) const {
  if (!holds(item)) return std::nullopt;
  const Record& found = record(item);
  if (found.file_bytes != stamp.bytes || found.mtime_ns != stamp.mtime_ns) return std::nullopt;
  const uint8_t* data = memory_.data() + header().data + found.offset;
  return Kept{{data, found.bytes}, found.width, found.height};
}

// A record is free again if the process that was filling it has died.
bool FileStore::is_free(uint64_t state) {
  if (state == empty) return true;
  return state != filled && kill(static_cast<pid_t>(state >> 1), 0) != 0 && errno == ESRCH;
}

bool FileStore::lacks(uint64_t item, size_t bytes) const {
  const Header& head = header();
  if (item >= head.items || head.closed.load(std::memory_order_relaxed)) return false;
  const uint64_t used = head.used.load(std::memory_order_relaxed);
  return rounded_up(bytes) <= head.capacity - used &&
         is_free(record(item).state.load(std::memory_order_relaxed));
}

bool FileStore::take_room(size_t bytes, uint64_t& offset) {
  Header& head = header();
  const uint64_t needed = rounded_up(bytes);
  offset = head.used.load();
  do {
    if (needed > head.capacity - offset) return false;
  } while (!head.used.compare_exchange_weak(offset, offset + needed));
  return true;
}

bool FileStore::system_has_room(size_t bytes) const {
  struct statvfs system{};
  if (fstatvfs(fd_, &system) != 0) return false;
  return uint64_t{system.f_bavail} * system.f_frsize >= bytes + header().spared;
}

// Not through the mapping: without free memory a write is an error, a store would raise SIGBUS.
bool FileStore::write(uint64_t offset, ByteView data) const {
  size_t done = 0;
  while (done < data.size) {
    const auto at = static_cast<off_t>(header().data + offset + done);
    const ssize_t written = pwrite(fd_, data.data + done, data.size - done, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

bool FileStore::put(uint64_t item, FileStamp stamp, uint32_t width, uint32_t height,
                    ByteView data) {
  if (!lacks(item, data.size)) return false;
  Record& target = record(item);
  uint64_t state = target.state.load();
  const uint64_t filling = static_cast<uint64_t>(getpid()) << 1;
  if (!is_free(state) || !target.state.compare_exchange_strong(state, filling)) return false;
  uint64_t offset;
  bool done = take_room(data.size, offset);
  if (done && !(system_has_room(data.size) && write(offset, data))) {
    header().closed.store(1);
    done = false;
  }
  if (!done) {
    target.state.store(empty);
    return false;
  }
  target.offset = offset;
  target.bytes = data.size;
  target.file_bytes = stamp.bytes;
  target.mtime_ns = stamp.mtime_ns;
  target.width = width;
  target.height = height;
  header().kept.fetch_add(1);
  target.state.store(filled, std::memory_order_release);
  return true;
}

}  // namespace fusionloader
