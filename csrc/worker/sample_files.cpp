#include "worker/sample_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace fusionloader {

namespace {

// Without waiting for a writer where the path is a FIFO's.
int open_to_read(const char* path) { return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

class File {
 public:
  explicit File(const char* path) : fd_(open_to_read(path)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

FileStamp stamp_of(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

SampleFiles::~SampleFiles() {
  for (const Open& each : open_) close(each.fd);
}

std::optional<SampleFiles::Read> SampleFiles::read(const DatasetTable& table, uint64_t item) {
  if (!table.holds_ranges()) return read_whole(table.path(item));
  const auto fd = unchanged(table, item);
  const uint64_t offset = table.offset(item), bytes = table.range_bytes(item);
  if (!fd || offset + bytes > table.file_stamp(item).bytes || bytes > largest) return std::nullopt;
  if (!read_into(*fd, offset, bytes)) return std::nullopt;
  return Read{{buffer_.data(), bytes}, table.range_stamp(item)};
}

std::optional<FileStamp> SampleFiles::stamp(const DatasetTable& table, uint64_t item) {
  if (table.is_remote()) return table.range_stamp(item);
  if (table.holds_ranges()) {
    if (!unchanged(table, item)) return std::nullopt;
    return table.range_stamp(item);
  }
  struct stat info{};
  if (stat(table.path(item), &info) != 0) return std::nullopt;
  return stamp_of(info);
}

std::optional<SampleFiles::Read> SampleFiles::read_whole(const char* path) {
  const File file(path);
  struct stat info{};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size <= 0 || static_cast<size_t>(info.st_size) > largest)
    return std::nullopt;
  const auto bytes = static_cast<size_t>(info.st_size);
  if (!read_into(file.fd(), 0, bytes)) return std::nullopt;
  return Read{{buffer_.data(), bytes}, stamp_of(info)};
}

bool SampleFiles::read_into(int fd, uint64_t offset, size_t bytes) {
  if (buffer_.size() < bytes || buffer_.size() > 16 * bytes + (size_t{1} << 22))
    buffer_ = std::vector<uint8_t>(bytes + std::min(bytes / 2, most_margin));
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(fd, buffer_.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// The descriptor of a sample's file. One that was removed, or replaced by another, has no link.
std::optional<int> SampleFiles::unchanged(const DatasetTable& table, uint64_t item) {
  const uint64_t file = table.file(item);
  Open* opened = find(file);
  if (!opened) opened = open_file(file, table.path(item));
  if (!opened) return std::nullopt;
  opened->used = ++uses_;
  struct stat info{};
  if (fstat(opened->fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 0) {
    const FileStamp now = stamp_of(info), then = table.file_stamp(item);
    if (now.bytes == then.bytes && now.mtime_ns == then.mtime_ns) return opened->fd;
  }
  close_file(opened);  // what is there now is opened the next time
  return std::nullopt;
}

SampleFiles::Open* SampleFiles::find(uint64_t file) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& each) { return each.file == file; });
  return found == open_.end() ? nullptr : &*found;
}

SampleFiles::Open* SampleFiles::open_file(uint64_t file, const char* path) {
  if (open_.size() >= most_open) close_oldest();
  int fd = open_to_read(path);
  while (fd < 0 && (errno == EMFILE || errno == ENFILE) && !open_.empty()) {
    close_oldest();
    fd = open_to_read(path);
  }
  if (fd < 0) return nullptr;
  open_.push_back({file, fd, 0});
  return &open_.back();
}

void SampleFiles::close_file(Open* which) {
  close(which->fd);
  *which = open_.back();
  open_.pop_back();
}

void SampleFiles::close_oldest() {
  close_file(&*std::min_element(open_.begin(), open_.end(),
                                [](const Open& a, const Open& b) { return a.used < b.used; }));
}

}  // namespace fusionloader
