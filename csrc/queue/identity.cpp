#include "queue/identity.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fusionloader {

uint64_t identity_of(uint32_t pid) {
  char text[64];
  std::snprintf(text, sizeof text, "/proc/%u/stat", pid);
  const int fd = open(text, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char stat[1024];
  const ssize_t got = read(fd, stat, sizeof stat - 1);
  close(fd);
  if (got <= 0) return 0;
  stat[got] = 0;
  // The name, field 2, may hold spaces and brackets itself; the state is field 3, the start 22.
  const char* at = std::strrchr(stat, ')');
  if (at == nullptr || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  const uint64_t start = std::strtoull(at + 1, nullptr, 10);
  return (start << 22) | (pid & 0x3fffff);
}

}  // namespace fusionloader
