#pragma once
// Whether the process at the other end lives, and its end when it has to.
#include <cstdint>

namespace fusionloader::cuda {

// This process's own; throws where /proc does not tell.
uint64_t my_identity();

// Whether nothing of the process runs any more: it was reaped, or all of its threads have ended.
// The kernel has closed its files by then, so the CUDA driver has taken down its work and mappings.
// Being killed is not enough: a killed process goes on until it is back from the kernel.
bool ended(uint64_t identity);

// Kills the process if it is a child of this one; false when it is not.
bool kill_child(uint64_t identity);

// Processes can tell each other's identities only where these are the same.
struct Namespaces {
  uint64_t pids;
  uint64_t time;
  bool operator==(const Namespaces& other) const {
    return pids == other.pids && time == other.time;
  }
};
Namespaces my_namespaces();

}  // namespace fusionloader::cuda
