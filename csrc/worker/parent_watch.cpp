#include "worker/parent_watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <system_error>

namespace fusionloader {
namespace {

constexpr int kLookMilliseconds = 500;
constexpr size_t kStackBytes = 256 << 10;  // it counts against limits of address space

struct Watched {
  pid_t parent;
  int ended;
};

void* watch(void* given) {
  const Watched watched = *static_cast<const Watched*>(given);
  pollfd end{watched.ended, POLLIN, 0};
  while (watched.parent == 0 || getppid() == watched.parent) {
    if (poll(&end, 1, kLookMilliseconds) > 0) {
      if ((end.revents & (POLLIN | POLLHUP)) != 0) break;
      end.fd = -1;  // the user's code has closed it
    }
  }
  _exit(1);
}

}  // namespace

void exit_with(pid_t parent, int ended) {
  static Watched watched;  // there is one such thread
  watched = {parent, ended};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // which the thread inherits
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, watch, &watched);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "the orphan watch");
}

}  // namespace fusionloader
