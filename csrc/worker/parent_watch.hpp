// A process's end with the process that it works for.
#pragma once
#include <sys/types.h>

namespace fusionloader {

// Ends this process within half a second of another one's end, whatever its threads are at: a
// thread of its own looks for that, needs no lock, and calls _exit.
//
// `parent` is the pid of this process's parent, or 0. `ended` is a descriptor that becomes readable
// with the other process's end, or -1; it stays open for good. PR_SET_PDEATHSIG would not do: it
// strikes when the thread of the parent ends that has started this process.
//
// Throws std::system_error where no thread can be started.
void exit_with(pid_t parent, int ended);

}  // namespace fusionloader
