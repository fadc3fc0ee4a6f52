#pragma once
// Sleeping on a word of shared memory. Unlike a semaphore, a word holds no token that a killed
// process could take with it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "queue/layout.hpp"

namespace fusionloader {

// Returns when the word is no longer `seen`, when woken, on a signal, or after `timeout_ns`.
inline void futex_wait(Atomic32& word, uint32_t seen, int64_t timeout_ns) {
  timespec limit{};
  limit.tv_sec = timeout_ns / 1'000'000'000;
  limit.tv_nsec = timeout_ns % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

// Wakes at most so many.
inline void futex_wake(Atomic32& word, uint32_t most) {
  const int count = static_cast<int>(std::min<uint32_t>(most, INT_MAX));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, count, nullptr, nullptr, 0);
}

inline void futex_wake_all(Atomic32& word) { futex_wake(word, INT_MAX); }

inline uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace fusionloader
