// Preloaded into worker processes: open() of a file below THROTTLE_FILES returns when the file
// would have come from a line of so many bytes a second, which all processes share
// (THROTTLE_CONTROL).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

struct control {
  double ns_per_byte;
  _Atomic int64_t free_ns;  // when the line has sent all that was asked for
};

static struct control* control;
static const char* files;
static int (*real_open)(const char*, int, ...);

__attribute__((constructor)) static void start(void) {
  real_open = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  files = getenv("THROTTLE_FILES");
  const char* path = getenv("THROTTLE_CONTROL");
  const int fd = path ? real_open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* memory = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory != MAP_FAILED) control = memory;
}

static void wait_for(int64_t bytes) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
  const int64_t takes = (int64_t)((double)bytes * control->ns_per_byte);
  int64_t before = atomic_load(&control->free_ns), until;
  do {
    until = (before > now ? before : now) + takes;
  } while (!atomic_compare_exchange_weak(&control->free_ns, &before, until));
  time.tv_sec = until / 1000000000;
  time.tv_nsec = until % 1000000000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) continue;
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
  va_end(rest);
  const int fd = real_open(path, flags, mode);
  struct stat info;
  if (fd >= 0 && control && control->ns_per_byte > 0 && files &&
      strncmp(path, files, strlen(files)) == 0 && fstat(fd, &info) == 0)
    wait_for(info.st_size);
  return fd;
}

// What Python calls.
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
