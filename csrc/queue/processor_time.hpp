#pragma once
// What the calling thread got of the machine's processors, as the kernel counts it.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace fusionloader {

struct ProcessorTime {
  uint64_t seen_ns = 0;  // CLOCK_MONOTONIC when it was read; 0: never
  uint64_t cpu_ns = 0;
  uint64_t run_delay_ns = 0;  // ready to run without a core; 0 where the kernel does not count it

  static ProcessorTime now(uint64_t now_ns) {
    timespec cpu{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return {now_ns,
            static_cast<uint64_t>(cpu.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(cpu.tv_nsec),
            run_delay()};
  }

 private:
  // The second number of three: time on a core, time ready to run, turns on a core.
  static uint64_t run_delay() {
    const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    char text[80];
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    uint64_t delay = 0;
    text[length > 0 ? length : 0] = 0;
    return std::sscanf(text, "%*u %" SCNu64, &delay) == 1 ? delay : 0;
  }
};

}  // namespace fusionloader
