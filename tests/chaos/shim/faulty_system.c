// Preloaded into training processes and their workers: calls fail, and the clock jumps, as the
// file FAULTY_CONTROL says, which the campaign writes. Files are those whose path begins as given.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { most_fds = 1 << 16, path_bytes = 4096 - 32 };

// Errors are numbers of errno, 0 for none.
struct control {
  _Atomic int64_t clock_offset_ns;
  _Atomic int32_t open_error, read_error, write_error;
  _Atomic int32_t hits;  // calls that have failed
  char path[path_bytes];
};

static struct control* control;
static _Atomic char concerned[most_fds];  // by descriptor: opened under that path

#define REAL(name) ((typeof(&name))real(#name))

static void* real(const char* name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void start(void) {
  const char* path = getenv("FAULTY_CONTROL");
  const int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* memory = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REAL(close)(fd);
  if (memory != MAP_FAILED) control = memory;
}

static int is_concerned(const char* path) {
  const size_t length = control ? strnlen(control->path, path_bytes) : 0;
  return length > 0 && strncmp(path, control->path, length) == 0;
}

static int fails(int error) {
  if (error == 0) return 0;
  atomic_fetch_add(&control->hits, 1);
  errno = error;
  return 1;
}

static int note(const char* path, int fd) {
  if (fd >= 0 && fd < most_fds) concerned[fd] = (char)is_concerned(path);
  return fd;
}

static int bad_to_read(int fd) {
  if (!control || fd < 0 || fd >= most_fds || !concerned[fd]) return 0;
  return fails(control->read_error);
}

// A file that is written may have been opened by another process, so its path is asked for.
static int bad_to_write(int fd) {
  if (!control || !control->write_error) return 0;
  char link[32], path[path_bytes];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_concerned(path) && fails(control->write_error);
}

#define MODE(flags, last)                                                   \
  va_list rest;                                                             \
  va_start(rest, last);                                                     \
  const int mode = (flags) & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
  va_end(rest)

int open(const char* path, int flags, ...) {
  MODE(flags, flags);
  if (is_concerned(path) && fails(control->open_error)) return -1;
  return note(path, REAL(open)(path, flags, mode));
}

int open64(const char* path, int flags, ...) {
  MODE(flags, flags);
  if (is_concerned(path) && fails(control->open_error)) return -1;
  return note(path, REAL(open64)(path, flags, mode));
}

int openat(int folder, const char* path, int flags, ...) {
  MODE(flags, flags);
  if (is_concerned(path) && fails(control->open_error)) return -1;
  return note(path, REAL(openat)(folder, path, flags, mode));
}

int close(int fd) {
  if (fd >= 0 && fd < most_fds) concerned[fd] = 0;
  return REAL(close)(fd);
}

ssize_t read(int fd, void* into, size_t bytes) {
  return bad_to_read(fd) ? -1 : REAL(read)(fd, into, bytes);
}

ssize_t pread(int fd, void* into, size_t bytes, off_t at) {
  return bad_to_read(fd) ? -1 : REAL(pread)(fd, into, bytes, at);
}

ssize_t pread64(int fd, void* into, size_t bytes, off64_t at) {
  return bad_to_read(fd) ? -1 : REAL(pread64)(fd, into, bytes, at);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  return bad_to_write(fd) ? -1 : REAL(write)(fd, from, bytes);
}

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  return bad_to_write(fd) ? -1 : REAL(pwrite)(fd, from, bytes, at);
}

ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t at) {
  return bad_to_write(fd) ? -1 : REAL(pwrite64)(fd, from, bytes, at);
}

int ftruncate(int fd, off_t bytes) { return bad_to_write(fd) ? -1 : REAL(ftruncate)(fd, bytes); }

int posix_fallocate(int fd, off_t at, off_t bytes) {
  return bad_to_write(fd) ? errno : REAL(posix_fallocate)(fd, at, bytes);
}

static void jump(struct timespec* now) {
  const int64_t offset = control ? atomic_load(&control->clock_offset_ns) : 0;
  const int64_t all = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + offset;
  now->tv_sec = all / 1000000000;
  now->tv_nsec = all % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = REAL(clock_gettime)(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) jump(now);
  return result;
}

time_t time(time_t* into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
