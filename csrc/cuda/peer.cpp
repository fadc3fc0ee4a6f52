#include "cuda/peer.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "cuda/error.hpp"
#include "queue/identity.hpp"

namespace fusionloader::cuda {
namespace {

uint64_t inode_of(const char* path) {
  struct stat found{};
  return stat(path, &found) == 0 ? found.st_ino : 0;
}

}  // namespace

uint64_t my_identity() {
  const uint64_t identity = identity_of(static_cast<uint32_t>(getpid()));
  if (identity == 0) throw Error(Fault::peer, "/proc does not tell when this process was started");
  return identity;
}

bool kill_child(uint64_t identity) {
  const auto pid = static_cast<pid_t>(pid_of(identity));
  // From here on the number is this process's or nobody's, whoever reaps it meanwhile.
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) return errno == ESRCH;
  const auto stat = stat_of(pid_of(identity));
  const bool other = stat && !is_of(*stat, identity);
  const bool child = stat && stat->parent == static_cast<uint32_t>(getpid());
  if (child && !other) syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0);
  close(process);
  return child || other;
}

Namespaces my_namespaces() {
  return {inode_of("/proc/self/ns/pid"), inode_of("/proc/self/ns/time")};
}

}  // namespace fusionloader::cuda
