#pragma once
// Who a process is, beyond its pid, which the system gives to others again.
#include <cstdint>
#include <optional>

namespace fusionloader {

// What /proc tells of a process.
struct ProcessStat {
  char state;  // 'Z': its first thread has ended
  uint32_t parent;
  uint32_t threads;
  uint64_t start;  // ticks since boot
};
std::optional<ProcessStat> stat_of(uint32_t pid);

// [ticks from boot to its start : 42 | pid : 22]; 0 where no such process runs. A zombie does not:
// it writes nothing any more. Never twice the same while the machine is up.
uint64_t identity_of(uint32_t pid);

inline uint32_t pid_of(uint64_t identity) { return static_cast<uint32_t>(identity & 0x3fffff); }
inline uint64_t start_of(uint64_t identity) { return identity >> 22; }
inline bool runs(uint64_t identity) { return identity_of(pid_of(identity)) == identity; }

}  // namespace fusionloader
