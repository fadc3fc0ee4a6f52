#include "device/launcher.hpp"

#include <stdexcept>

namespace fusionloader::device {

using cuda::OnDevice;

Launcher::Launcher(int device, const std::string& image)
    : device_(device), kernel_(device, image, "fusionloader_augment") {
  const OnDevice on(device);
  try {
    for (Slot& slot : slots_) slot.done = on.make_event();
  } catch (...) {
    release(on);
    throw;
  }
}

Launcher::~Launcher() {
  try {
    release(OnDevice(device_));
  } catch (const std::exception&) {
    // Nothing is left to be released of a device that is lost.
  }
}

void Launcher::release(const OnDevice& on) {
  for (Slot& slot : slots_) {
    if (!slot.done) continue;
    on.wait_for(slot.done);
    free_memory(on, slot);
    on.destroy(slot.done);
    slot.done = nullptr;
  }
}

void Launcher::free_memory(const OnDevice& on, Slot& slot) const {
  if (slot.staging) on.free_page_locked(slot.staging);
  slot.staging = nullptr;
  if (slot.program) on.free(slot.program);
  slot.program = 0;
  slot.bytes = 0;
}

void Launcher::reserve(const OnDevice& on, Slot& slot, size_t bytes) const {
  if (bytes <= slot.bytes) return;
  free_memory(on, slot);
  const size_t more = bytes + bytes / 4;
  slot.staging = on.allocate_page_locked(more);
  slot.program = on.allocate(more);
  slot.bytes = more;
}

void Launcher::launch(const BatchBuilder& batch, uint64_t work, uint64_t stream) {
  if (batch.samples() == 0) throw std::invalid_argument("a launch has at least one sample");
  const OnDevice on(device_);
  Slot& slot = slots_[next_];
  on.wait_for(slot.done);
  reserve(on, slot, batch.bytes());
  batch.write(static_cast<uint8_t*>(slot.staging));
  on.copy(slot.program, slot.staging, batch.bytes(), stream);
  on.record(slot.done, stream);  // also if the launch fails: the next one writes there
  void* arguments[] = {&slot.program, &work};
  on.launch(kernel_.function(), {batch.samples(), 1, threads_per_block}, stream, arguments);
  on.record(slot.done, stream);
  next_ = (next_ + 1) % slots;
}

}  // namespace fusionloader::device
