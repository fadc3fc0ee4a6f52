#include "cuda/event.hpp"

#include <unistd.h>

#include "cuda/driver.hpp"

namespace fusionloader::cuda {

Event::Event(int device, uint64_t stream) : device_(device), pid_(getpid()) {
  const OnDevice on(device);
  on.driver_.check(on.cuda_.cuEventCreate(&handle_, kWithoutTiming), "cuEventCreate");
  const Result result = on.cuda_.cuEventRecord(handle_, reinterpret_cast<Stream>(stream));
  if (result != kSuccess) on.cuda_.cuEventDestroy(handle_);
  on.driver_.check(result, "cuEventRecord");
}

Event::~Event() {
  if (pid_ != getpid()) return;  // CUDA is its parent's
  try {
    OnDevice(device_).cuda_.cuEventDestroy(handle_);
  } catch (const std::exception&) {  // the device is lost, and its events with it
  }
}

bool Event::query() const {
  const OnDevice on(device_);
  const Result result = on.cuda_.cuEventQuery(handle_);
  if (result == kNotReady) return false;
  on.driver_.check(result, "cuEventQuery");
  return true;
}

void Event::synchronize() const {
  const OnDevice on(device_);
  on.driver_.check(on.cuda_.cuEventSynchronize(handle_), "cuEventSynchronize");
}

void Event::hold_back(uint64_t stream) const {
  const OnDevice on(device_);
  on.driver_.check(on.cuda_.cuStreamWaitEvent(reinterpret_cast<Stream>(stream), handle_, 0),
                   "cuStreamWaitEvent");
}

}  // namespace fusionloader::cuda
