#include "cuda/event.hpp"

#include <unistd.h>

#include "cuda/driver.hpp"

namespace fusionloader::cuda {

Event::Event(int device, uint64_t stream, bool timed) : device_(device), pid_(getpid()) {
  const OnDevice on(device);
  handle_ = on.make_event(timed);
  try {
    on.record(handle_, stream);
  } catch (...) {
    on.destroy(handle_);
    throw;
  }
}

Event::~Event() {
  if (pid_ != getpid()) return;  // CUDA is its parent's
  try {
    OnDevice(device_).destroy(handle_);
  } catch (const std::exception&) {  // the device is lost, and its events with it
  }
}

bool Event::query() const { return OnDevice(device_).has_passed(handle_); }

double Event::seconds_since(const Event& earlier) const {
  return OnDevice(device_).seconds_between(earlier.handle_, handle_);
}

void Event::hold_back(uint64_t stream) const { OnDevice(device_).hold_back(stream, handle_); }

}  // namespace fusionloader::cuda
