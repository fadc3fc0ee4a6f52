#pragma once
// A point in the work of a device.
#include <sys/types.h>

#include <cstdint>

#include "cuda/driver_table.hpp"

namespace fusionloader::cuda {

class Event {
 public:
  // The point behind all that is in the stream now. What is timed takes the device a little longer.
  Event(int device, uint64_t stream, bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Whether the device has passed it.
  bool query() const;
  // Both timed, and passed.
  double seconds_since(const Event& earlier) const;
  // Nothing that is put into the stream from now on begins before it.
  void hold_back(uint64_t stream) const;

 private:
  int device_;
  pid_t pid_;
  EventHandle handle_ = nullptr;
};

}  // namespace fusionloader::cuda
