#pragma once
// The CUDA driver, loaded when it is first needed. Every call that fails throws Error with CUDA's
// own name and text.
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/driver_table.hpp"

namespace fusionloader::cuda {

using Uuid = std::array<uint8_t, 16>;
using IpcHandle = std::array<uint8_t, 64>;

struct Allocation {
  uint64_t base;
  uint64_t bytes;
  uint64_t id;  // differs from that of any earlier allocation at the same place
};

struct Grid {
  unsigned across, down;  // blocks
  unsigned threads;       // of a block
};

class Driver {
 public:
  // The process's only one: libcuda.so.1, or what FUSIONLOADER_LIBCUDA names.
  static Driver& get();

  const std::string& library() const { return library_; }
  int device_count();
  // By UUID, since CUDA_VISIBLE_DEVICES may number devices otherwise in another process.
  std::optional<int> find_device(const Uuid& uuid);
  Uuid uuid(int device);
  // Its architecture's number, as sm_90 has it: 90. Makes no context.
  int architecture(int device);
  // Of memory that a device has for this process; nothing for any other address.
  std::optional<int> device_of(uint64_t address);

 private:
  friend class OnDevice;
  friend class RelaxedCapture;
  Driver();
  void initialize();
  Context primary_context(int device);
  void check(Result result, const char* call) const;
  Device handle_of(int device);
  bool has_context(int device);

  std::string library_;
  DriverTable table_;
  std::mutex mutex_;
  pid_t pid_ = 0;  // that initialised CUDA
  std::map<int, Context> contexts_;
};

// While it lives, the primary context of a device, which PyTorch uses too, is this thread's.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  // Nothing where the memory was freed.
  std::optional<Allocation> allocation_of(uint64_t address) const;
  // Whether another process can open it: not memory of expandable segments or memory pools.
  bool can_be_opened_elsewhere(uint64_t address) const;
  IpcHandle export_handle(uint64_t base) const;
  uint64_t open(const IpcHandle& handle) const;
  void close(uint64_t base) const;
  bool is_capturing(uint64_t stream) const;
  // Calls `function` on a thread of the driver when all that is in the stream by now is done.
  void call_after(uint64_t stream, HostFunction function, void* argument) const;
  void synchronize(uint64_t stream) const;
  void synchronize() const;  // all work of this process
  uint64_t allocate(size_t bytes) const;
  void free(uint64_t address) const;
  void fill(uint64_t address, uint32_t value, size_t count) const;
  void read(void* to, uint64_t address, size_t bytes) const;
  // What is copied from, without the host waiting for it; not to be unmapped before lock ends.
  void page_lock(void* memory, size_t bytes) const;
  void page_unlock(void* memory) const;
  uint64_t make_stream() const;
  // `from` is page-locked, and stays as it is until the stream has passed.
  void copy(uint64_t to, const void* from, size_t bytes, uint64_t stream) const;
  // `arguments` points to each argument; they are copied before it returns.
  void launch(Function function, Grid grid, uint64_t stream, void** arguments) const;

  // Code for the device: CUBIN, or PTX with a zero at its end.
  Module load_module(const void* image) const;
  void unload(Module module) const;
  Function function(Module module, const char* name) const;
  void* allocate_page_locked(size_t bytes) const;
  void free_page_locked(void* memory) const;
  EventHandle make_event(bool timed = false) const;
  void destroy(EventHandle event) const;
  void record(EventHandle event, uint64_t stream) const;
  // Returns at once if it was never recorded.
  void wait_for(EventHandle event) const;
  bool has_passed(EventHandle event) const;
  // Between two timed events that the device has passed.
  double seconds_between(EventHandle from, EventHandle to) const;
  // Nothing that is put into the stream from now on begins before the event.
  void hold_back(uint64_t stream, EventHandle event) const;
  // As RelaxedCapture does, for as long as this thread lives.
  void relax_captures() const;

 private:
  friend class Driver;
  friend class RelaxedCapture;
  // False where no device has such memory.
  bool attribute(void* value, int which, uint64_t address) const;

  Driver& driver_;
  const DriverTable& cuda_;
  Context before_ = nullptr;
  bool changed_ = false;
};

// While it lives, this thread may do what it likes beside a CUDA graph that is captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const OnDevice& on);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const OnDevice& on_;
  int before_;
};

}  // namespace fusionloader::cuda
