#pragma once
// Whether the process at the other end lives, and its end when it has to.
#include <cstdint>

namespace fusionloader::cuda {

// This process's own; throws where /proc does not tell.
uint64_t my_identity();

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
