#pragma once
// The team of one lane: a sample at a time, in the calling thread of the host.
#include "device/team.hpp"

namespace fusionloader::device {

class OneLane {
 public:
  explicit OneLane(Scratch& scratch) : scratch_(scratch) {}
  int lane() const { return 0; }
  int lanes() const { return 1; }
  void sync() const {}
  Scratch& scratch() const { return scratch_; }
  template <class Count>
  void add(Count& counter, Count value) const {
    counter += value;
  }

 private:
  Scratch& scratch_;
};

}  // namespace fusionloader::device
