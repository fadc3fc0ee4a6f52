#include "worker/file_store.hpp"

#include <fcntl.h>
#include <libdeflate.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

#include "queue/identity.hpp"

namespace fusionloader {
namespace {

// Each file's data begins at a cache line.
constexpr uint64_t alignment = 64;
constexpr uint64_t page = 4096;
// Between two looks at what the system has free.
constexpr uint64_t looked_every = uint64_t{4} << 20;

uint64_t rounded_up(uint64_t bytes, uint64_t unit = alignment) {
  return (bytes + unit - 1) / unit * unit;
}

int duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "dup");
  return copy;
}

// Who fills a record. A forked process is another one.
uint64_t my_identity() {
  static thread_local pid_t pid = 0;
  static thread_local uint64_t identity = 0;
  if (pid != getpid()) {
    pid = getpid();
    identity = identity_of(static_cast<uint32_t>(pid));
  }
  return identity;
}

uint64_t free_memory() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return UINT64_MAX;
  char line[128];
  unsigned long long kib = 0;
  bool found = false;
  while (!found && std::fgets(line, sizeof line, file) != nullptr)
    found = std::sscanf(line, "MemAvailable: %llu", &kib) == 1;
  std::fclose(file);
  return found ? uint64_t{kib} << 10 : UINT64_MAX;
}

}  // namespace

FileStore::FileStore(int fd, size_t bytes, Ledger* ledger)
    : fd_(-1), memory_(fd, 0, bytes, false, Backing::file), ledger_(ledger) {
  check(fd);
  fd_ = duplicate(fd);
}
FileStore::~FileStore() { close(fd_); }

void FileStore::check(int fd) const {
  const size_t mapped = memory_.bytes();
  if (mapped < sizeof(Header) || header().magic != magic)
    throw MappingMismatch::version("no store of what is kept of files");
  const Header& head = header();
  const bool is_whole = head.records <= head.data && head.data <= mapped &&
                        head.items <= (head.data - head.records) / sizeof(Record) &&
                        (on_disk() || head.capacity <= mapped - head.data);
  if (!is_whole) throw MappingMismatch::version("a store that is not whole");
  if (!on_disk()) Mapping::require_private(fd);
}

bool FileStore::holds(uint64_t item) const {
  return item < header().items && record(item).state.load(std::memory_order_acquire) == filled;
}

bool FileStore::is_of(uint64_t item, FileStamp stamp) const {
  if (item >= header().items) return false;
  const Record& asked = record(item);
  return asked.state.load(std::memory_order_acquire) != empty && asked.file_bytes == stamp.bytes &&
         asked.mtime_ns == stamp.mtime_ns;
}

std::optional<FileStore::Kept> FileStore::find(uint64_t item, FileStamp stamp,
                                               std::vector<uint8_t>& buffer) const {
  if (!holds(item)) return std::nullopt;
  const Record& found = record(item);
  if (found.file_bytes != stamp.bytes || found.mtime_ns != stamp.mtime_ns) {
    // Nobody looks at what is on a disk: it can be replaced.
    if (on_disk()) forget(item);
    return std::nullopt;
  }
  if (!on_disk())
    return Kept{
        {memory_.data() + header().data + found.offset, found.bytes}, found.width, found.height};
  Kept kept{};
  if (!read(item, buffer, kept)) {
    header().damaged.fetch_add(1);
    forget(item);
    return std::nullopt;
  }
  return kept;
}

void FileStore::forget(uint64_t item) const {
  uint64_t state = filled;
  if (record(item).state.compare_exchange_strong(state, empty)) header().kept.fetch_sub(1);
}

// Another process may fill the record anew meanwhile: what is checked is what was copied.
bool FileStore::read(uint64_t item, std::vector<uint8_t>& buffer, Kept& kept) const {
  const Record& found = record(item);
  const uint64_t offset = found.offset, bytes = found.bytes, capacity = header().capacity;
  const FileStamp stamp{found.file_bytes, found.mtime_ns};
  if (bytes > capacity || offset > capacity - bytes) return false;
  if (buffer.size() < bytes) buffer.resize(bytes + bytes / 2);
  size_t done = 0;
  while (done < bytes) {
    const auto at = static_cast<off_t>(header().data + offset + done);
    const ssize_t got = pread(fd_, buffer.data() + done, bytes - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  kept = {{buffer.data(), bytes}, found.width, found.height};
  return checksum(item, stamp, kept) == found.checksum;
}

// Of the data and of all that says what it is.
uint32_t FileStore::checksum(uint64_t item, FileStamp stamp, const Kept& kept) {
  const uint64_t fields[] = {item, kept.data.size, stamp.bytes,
                             static_cast<uint64_t>(stamp.mtime_ns),
                             uint64_t{kept.width} << 32 | kept.height};
  return libdeflate_crc32(libdeflate_crc32(0, fields, sizeof fields), kept.data.data,
                          kept.data.size);
}

// A record is free again if the process that was filling it has died.
bool FileStore::is_free(uint64_t state) {
  return state == empty || (state != filled && !runs(state));
}

bool FileStore::has_room(size_t bytes) const {
  const Header& head = header();
  const uint64_t used = head.used.load(std::memory_order_relaxed), needed = rounded_up(bytes);
  if (head.closed.load(std::memory_order_relaxed) || used > head.capacity ||
      needed > head.capacity - used)
    return false;
  if (ledger_ == nullptr) return true;
  return pages_end(used + needed) - pages_end(used) + left_ <= ledger_->left(Medium{head.medium});
}

uint64_t FileStore::to_come(uint64_t files, uint64_t guess) const {
  const uint64_t kept = header().kept.load(std::memory_order_relaxed);
  if (kept >= files) return 0;
  const uint64_t each = kept ? header().used.load(std::memory_order_relaxed) / kept : guess;
  return (files - kept) * each;
}

bool FileStore::lacks(uint64_t item, size_t bytes) const {
  if (item >= header().items) return false;
  const Record& asked = record(item);
  const uint64_t state = asked.state.load(std::memory_order_relaxed);
  if (state == filled || (asked.room.load(std::memory_order_relaxed) < bytes && !has_room(bytes)))
    return false;
  return is_free(state);
}

// Where the pages end that are allocated when so much of the data is in use.
uint64_t FileStore::pages_end(uint64_t used) const {
  return rounded_up(header().data + used, page);
}

bool FileStore::take_room(size_t bytes, uint64_t& offset) {
  Header& head = header();
  const uint64_t needed = rounded_up(bytes);
  for (;;) {
    offset = head.used.load();
    if (!has_room(bytes)) return false;
    const uint64_t pages = pages_end(offset + needed) - pages_end(offset);
    const auto medium = Medium{head.medium};
    if (ledger_ != nullptr && !ledger_->charge(medium, pages)) return false;
    if (head.used.compare_exchange_strong(offset, offset + needed)) return true;
    if (ledger_ != nullptr) ledger_->refund(medium, pages);
  }
}

bool FileStore::system_has_room(size_t bytes) {
  struct statvfs system{};
  if (fstatvfs(fd_, &system) != 0) return false;
  const uint64_t size = uint64_t{system.f_blocks} * system.f_frsize;
  const uint64_t room = uint64_t{system.f_bavail} * system.f_frsize;
  uint64_t spared = header().spared;
  if (on_disk()) return spared == 0 || room >= bytes + spared;
  // In /dev/shm, which has a size where a memfd has none, half is for batches.
  if (size != 0 && room < bytes + std::min(spared != 0 ? spared : size, size / 2)) return false;
  if (spared == 0) return true;
  if (written_ != 0 && written_ + bytes < looked_every) return true;
  written_ = 0;
  return free_memory() >= bytes + spared;
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

bool FileStore::begin(uint64_t item, FileStamp stamp, size_t bytes) {
  if (!lacks(item, bytes)) return false;
  Record& target = record(item);
  uint64_t state = target.state.load();
  const uint64_t me = my_identity();  // 0 where the system does not tell
  if (me == empty || !is_free(state) || !target.state.compare_exchange_strong(state, me))
    return false;
  target.file_bytes = stamp.bytes;
  target.mtime_ns = stamp.mtime_ns;
  // Taken by a process that died, or gave up.
  const uint64_t room = target.room.load(std::memory_order_acquire);
  if (room >= bytes && room > 0) return true;
  uint64_t offset;
  if (!take_room(bytes, offset)) {
    abandon(item);
    return false;
  }
  target.offset = offset;
  // Behind the place: after a death in between, more room than there is would reach the neighbour.
  target.room.store(rounded_up(bytes), std::memory_order_release);
  return true;
}

bool FileStore::commit(uint64_t item, uint32_t width, uint32_t height, ByteView data) {
  Record& target = record(item);
  if (!(system_has_room(data.size) && write(target.offset, data))) {
    header().closed.store(1);
    abandon(item);
    return false;
  }
  written_ += std::max<uint64_t>(data.size, 1);
  target.bytes = data.size;
  target.width = width;
  target.height = height;
  const FileStamp stamp{target.file_bytes, target.mtime_ns};
  target.checksum = on_disk() ? checksum(item, stamp, {data, width, height}) : 0;
  header().kept.fetch_add(1);
  target.state.store(filled, std::memory_order_release);
  return true;
}

void FileStore::abandon(uint64_t item) { record(item).state.store(empty); }

bool FileStore::put(uint64_t item, FileStamp stamp, uint32_t width, uint32_t height,
                    ByteView data) {
  return begin(item, stamp, data.size) && commit(item, width, height, data);
}

}  // namespace fusionloader
