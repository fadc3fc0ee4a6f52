#pragma once
// Launches batches on a CUDA device. What a launch needs besides the caller's memory is kept from
// launch to launch.
#include <array>
#include <string>

#include "cuda/kernel.hpp"
#include "device/builder.hpp"

namespace fusionloader::device {

// Calls come from one thread at a time. What fails throws cuda::Error. Streams are numbers, as for
// cuda::OnDevice.
class Launcher {
 public:
  // `image` is what NVRTC made of the kernel's source for the device: CUBIN, or PTX with a zero at
  // its end.
  Launcher(int device, const std::string& image);
  // Waits for what was launched.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Copies the batch's program to the device and runs its samples, all in the order of the stream.
  // They need batch.work_bytes() at `work`, to be kept until the stream has come so far. Returns at
  // once, but waits for the launch before the `slots` last ones.
  void launch(const BatchBuilder& batch, uint64_t work, uint64_t stream);
  void wait(uint64_t stream) const { cuda::OnDevice(device_).synchronize(stream); }

  static constexpr size_t slots = 4;

 private:
  // One launch's program, here and on the device. Memory only grows.
  struct Slot {
    void* staging = nullptr;  // page-locked
    uint64_t program = 0;
    size_t bytes = 0;
    cuda::EventHandle done = nullptr;
  };
  void reserve(const cuda::OnDevice& on, Slot& slot, size_t bytes) const;
  void free_memory(const cuda::OnDevice& on, Slot& slot) const;
  void release(const cuda::OnDevice& on);

  int device_;
  cuda::Kernel kernel_;
  std::array<Slot, slots> slots_{};
  size_t next_ = 0;
};

}  // namespace fusionloader::device
