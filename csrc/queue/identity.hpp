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

// [ticks from boot to its start, the lowest bits : 26 | namespaces : 16 | pid : 22]; 0 where no
// such process runs. A zombie does not: it writes nothing any more. The namespaces are this
// process's, of pids and of time: elsewhere the two other numbers mean something else. Another
// process has the same identity only if its pid was given away again after a multiple of 2^26
// ticks, a week.
uint64_t identity_of(uint32_t pid);

inline uint32_t pid_of(uint64_t identity) { return static_cast<uint32_t>(identity & 0x3fffff); }
// Whether what /proc tells of the process with this pid is of the process with this identity.
inline bool is_of(const ProcessStat& stat, uint64_t identity) {
  return (stat.start & 0x3ffffff) == identity >> 38;
}
// Whether nothing of the process runs any more: it was reaped, or all of its threads have ended.
// The kernel has closed its files by then, so the CUDA driver has taken down its work and mappings.
// Being killed is not enough: a killed process goes on until it is back from the kernel.
bool ended(uint64_t identity);
// Of a process of other namespaces nobody can tell here: it is taken to run.
bool runs(uint64_t identity);

}  // namespace fusionloader
