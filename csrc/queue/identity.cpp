#include "queue/identity.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fusionloader {
namespace {

// Of the fields in /proc/PID/stat, counted from 1, those behind the name.
constexpr int kName = 2, kParent = 4, kThreads = 20, kStart = 22;

uint64_t inode_of(const char* path) {
  struct stat found{};
  return stat(path, &found) == 0 ? found.st_ino : 0;  // an older kernel has none for time
}

// 16 bits that are other ones in other namespaces, but for one in 65,536 pairs of them.
uint64_t my_namespaces() {
  const uint64_t mixed = inode_of("/proc/self/ns/pid") * 0x9e3779b97f4a7c15u ^
                         inode_of("/proc/self/ns/time") * 0xc2b2ae3d27d4eb4fu;
  return (mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u >> 48;
}

}  // namespace

std::optional<ProcessStat> stat_of(uint32_t pid) {
  char text[64];
  std::snprintf(text, sizeof text, "/proc/%u/stat", pid);
  const int fd = open(text, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char stat[1024];
  const ssize_t got = read(fd, stat, sizeof stat - 1);
  close(fd);
  if (got <= 0) return std::nullopt;
  stat[got] = 0;
  // The name may hold spaces and brackets itself.
  const char* at = std::strrchr(stat, ')');
  if (at == nullptr || at[1] == 0) return std::nullopt;
  ProcessStat found{at[2], 0, 0, 0};
  for (int field = kName; field < kStart; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return std::nullopt;
    const uint64_t value = std::strtoull(at + 1, nullptr, 10);
    if (field + 1 == kParent) found.parent = static_cast<uint32_t>(value);
    if (field + 1 == kThreads) found.threads = static_cast<uint32_t>(value);
    if (field + 1 == kStart) found.start = value;
  }
  return found;
}

uint64_t identity_of(uint32_t pid) {
  const auto stat = stat_of(pid);
  if (!stat || stat->state == 'Z' || stat->state == 'X') return 0;
  return (stat->start << 38) | (my_namespaces() << 22) | (pid & 0x3fffff);
}

bool ended(uint64_t identity) {
  const auto stat = stat_of(pid_of(identity));
  // What cannot be read may live: descriptors may have run out, or /proc may hide it.
  if (!stat) return kill(static_cast<pid_t>(pid_of(identity)), 0) != 0 && errno == ESRCH;
  if (!is_of(*stat, identity)) return true;
  // The first thread may have ended before others, which write or use a device still.
  return (stat->state == 'Z' || stat->state == 'X') && stat->threads <= 1;
}

bool runs(uint64_t identity) {
  return (identity >> 22 & 0xffff) != my_namespaces() || !ended(identity);
}

}  // namespace fusionloader
