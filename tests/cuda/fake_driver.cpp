// A stand-in for libcuda.so.1 where there is no GPU: "device memory" is shared memory, a stream is
// a thread that runs its work in order, an IPC handle names a file descriptor of its process.
//
// Where CUDA leaves behaviour undefined this one aborts with a message: memory freed while another
// process has it open, memory closed or freed under work that uses it, CUDA called from a host
// function, copies that do not wait from memory that is not page-locked. It shows that the protocol
// and the code that calls CUDA are right, and says nothing of NVIDIA's driver.
//
// A device that is late (fakeLate) does everything as late as it may, in the order that hides
// least: work is done when somebody waits for the device, and the streams made last go first, so
// that copies overtake training wherever nothing makes them wait.
#include <elf.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver_table.hpp"
#include "device/levels_to_elements.hpp"
#include "device/one_lane.hpp"
#include "device/program_rows.hpp"

using namespace fusionloader::cuda;
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum : Result {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_HANDLE = 400,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  ALREADY_LOCKED = 712,
  NOT_LOCKED = 713,
  NOT_FOUND = 500,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
};
constexpr size_t kPage = 4096;
constexpr uint32_t kHandleMagic = 0x464d454d;

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

long setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atol(value);
}

void nap(long microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// One letter for each device that is visible; a device's UUID is its letter 16 times.
std::string devices() {
  const char* value = std::getenv("FAKE_CUDA_DEVICES");
  return value == nullptr ? "a" : value;
}

// The first page of the file of an allocation; the memory follows.
struct Label {
  uint64_t id;
  uint64_t bytes;
  char device;
};

// Memory that this process has allocated, or opened.
struct Memory {
  int fd;  // importers hold a shared lock on theirs, which the kernel drops when they die
  Label* label;
  size_t mapped;
  bool imported;
  bool expandable;
  IpcHandleBytes handle;
  int references;
  std::atomic<int> pending{0};  // work that was launched on it and is not done
  uint64_t base() const { return reinterpret_cast<uint64_t>(label) + kPage; }
};
using MemoryPointer = std::shared_ptr<Memory>;

// What a stream does next, once it is ready: a point of another stream may have to pass first.
struct Work {
  std::function<void()> call;
  std::function<bool()> ready = [] { return true; };
};

enum class Lateness : int { none, last_made_first, first_made_first };
std::atomic<Lateness> late{Lateness::none};
bool is_late() { return late != Lateness::none; }
struct StreamThread;
// Does what streams have until `enough`, that of `first` before all else.
void drive(const std::function<bool()>& enough, StreamThread* first = nullptr);

struct StreamThread {
  Context context = nullptr;  // null for default streams
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  bool busy = false;
  bool held = false;
  std::atomic<bool> capturing{false}, capture_broken{false};

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !work.empty() && !held && !is_late(); });
      lock.unlock();
      if (!step()) nap(50);
      lock.lock();
    }
  }
  // Does what comes next; false where there is nothing, or it is not ready.
  bool step() {
    std::unique_lock<std::mutex> lock(mutex);
    if (busy || held || work.empty() || !work.front().ready()) return false;
    const auto next = std::move(work.front().call);
    work.pop_front();
    busy = true;
    lock.unlock();
    next();
    lock.lock();
    busy = false;
    changed.notify_all();
    return true;
  }
  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex);
    return work.empty() && !busy;
  }
  void push(std::function<void()> function) { push(Work{std::move(function)}); }
  void push(Work next) {
    const std::lock_guard<std::mutex> lock(mutex);
    work.push_back(std::move(next));
    changed.notify_all();
  }
  void hold(bool on) {
    const std::lock_guard<std::mutex> lock(mutex);
    held = on;
    changed.notify_all();
  }
  void wait() {
    if (is_late()) drive([this] { return idle(); }, this);
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
};

struct EventRecord {
  const bool timed;
  std::atomic<uint64_t> recorded{0}, passed{0};
  std::atomic<int64_t> passed_ns{0};
  explicit EventRecord(bool with_time) : timed(with_time) {}
  bool has_passed(uint64_t record) const { return passed.load() >= record; }
};
using EventPointer = std::shared_ptr<EventRecord>;
const EventPointer& event_of(EventHandle handle) { return *static_cast<EventPointer*>(handle); }

// Page-locked memory of this process.
struct Locked {
  size_t bytes;
  int pending = 0;  // copies from it that are not done
};

struct Process {
  pid_t pid = 0;  // that called cuInit
  std::mutex mutex;
  std::map<uint64_t, MemoryPointer> memory;  // by base
  std::vector<StreamThread*> streams;
  std::map<uint64_t, Locked> locked;  // by address
  uint64_t allocations = 0;
  size_t in_use = 0;
  std::atomic<bool> broken{false};
};
// Never destroyed: the streams' threads run until the process ends.
Process& process = *new Process;
char contexts[26];  // by device: whether there is one
thread_local Context current = nullptr;
thread_local bool in_host_function = false;

// Calls that were made, and the one that is refused from a number of times on.
struct Calls {
  std::mutex mutex;
  std::map<std::string, int> made;
  std::string refused;
  int before = 0;
};
Calls& calls = *new Calls;
thread_local bool others_call = false;

// Counts a call; false where it is refused.
bool allowed(const char* call) {
  if (others_call) return true;
  const std::lock_guard<std::mutex> lock(calls.mutex);
  return calls.made[call]++ < calls.before || calls.refused != call;
}

// By its default argument it knows the function that asks.
bool usable(const char* call = __builtin_FUNCTION()) {
  if (in_host_function) misuse("CUDA was called from a host function");
  return process.pid == getpid() && allowed(call);
}
bool has_context(const char* call = __builtin_FUNCTION()) {
  return usable(call) && current != nullptr;
}
char current_device() {
  return devices()[static_cast<size_t>(static_cast<char*>(current) - contexts)];
}

MemoryPointer find(uint64_t address) {
  const std::lock_guard<std::mutex> lock(process.mutex);
  auto found = process.memory.upper_bound(address);
  if (found == process.memory.begin()) return nullptr;
  --found;
  const MemoryPointer memory = found->second;
  return address - memory->base() < memory->label->bytes ? memory : nullptr;
}

StreamThread* new_stream() {
  auto* stream = new StreamThread;
  process.streams.push_back(stream);
  std::thread([stream] { stream->run(); }).detach();
  return stream;
}

// 0, 1 and 2 are CUDA's own numbers of default streams.
StreamThread* stream_of(Stream stream) {
  if (reinterpret_cast<uint64_t>(stream) > 2) return static_cast<StreamThread*>(stream);
  const std::lock_guard<std::mutex> lock(process.mutex);
  static StreamThread* standard = new_stream();
  return standard;
}

std::vector<StreamThread*> all_streams() {
  const std::lock_guard<std::mutex> lock(process.mutex);
  std::vector<StreamThread*> all = process.streams;
  if (late == Lateness::last_made_first) std::reverse(all.begin(), all.end());
  return all;
}

void drive(const std::function<bool()>& enough, StreamThread* first) {
  static std::mutex one;
  const std::lock_guard<std::mutex> lock(one);
  while (!enough()) {
    if (first != nullptr && first->step()) continue;
    bool done = false;
    for (StreamThread* stream : all_streams()) done = done || stream->step();
    if (!done) nap(50);  // what was begun before it was late, or is held
  }
}

bool all_idle() {
  for (StreamThread* stream : all_streams())
    if (!stream->idle()) return false;
  return true;
}

void wait_for_all() {
  if (is_late()) return drive(all_idle);
  for (StreamThread* stream : all_streams()) stream->wait();
}

thread_local int capture_mode = 0;

// What must not be done while any stream is captured in CUDA's global mode, which is torch's: it
// fails, and so does the capture. Threads in relaxed mode may.
bool breaks_a_capture() {
  if (capture_mode == kRelaxedCapture) return false;
  const std::lock_guard<std::mutex> lock(process.mutex);
  bool any = false;
  for (StreamThread* stream : process.streams) {
    if (!stream->capturing) continue;
    stream->capture_broken = true;
    any = true;
  }
  return any;
}

size_t file_bytes(size_t bytes) { return kPage + (bytes + kPage - 1) / kPage * kPage; }

MemoryPointer map_file(int fd, size_t mapped) {
  void* at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  auto memory = std::make_shared<Memory>();
  memory->fd = fd;
  memory->label = static_cast<Label*>(at);
  memory->mapped = mapped;
  memory->references = 1;
  return memory;
}

void unmap(const MemoryPointer& memory) {
  process.memory.erase(memory->base());
  munmap(memory->label, memory->mapped);
  close(memory->fd);
}

Result allocate(DevicePointer* address, size_t bytes, bool expandable) {
  if (bytes == 0) return INVALID_VALUE;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(process.mutex);
  if (process.in_use + bytes > static_cast<size_t>(setting("FAKE_CUDA_MIB", 1024)) << 20)
    return OUT_OF_MEMORY;
  const int fd = memfd_create("fake-device-memory", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(file_bytes(bytes))) != 0) return OUT_OF_MEMORY;
  const MemoryPointer memory = map_file(fd, file_bytes(bytes));
  if (memory == nullptr) return OUT_OF_MEMORY;
  *memory->label = {static_cast<uint64_t>(getpid()) << 32 | ++process.allocations, bytes,
                    current_device()};
  memory->expandable = expandable;
  process.memory[memory->base()] = memory;
  process.in_use += bytes;
  *address = memory->base();
  return OK;
}

struct HandleWords {
  uint32_t magic;
  int32_t pid;
  int32_t fd;
  uint64_t id;
};

HandleWords words_of(const IpcHandleBytes& handle) {
  HandleWords words;
  std::memcpy(&words, handle.reserved, sizeof words);
  return words;
}

struct Range {
  uint64_t address;
  size_t bytes;
};

// Work of a stream on memory. A killed process's work stops, since its threads do.
Result launch(Stream stream, const std::vector<Range>& ranges, std::function<void()> work) {
  if (current == nullptr) return INVALID_CONTEXT;
  std::vector<MemoryPointer> touched;
  for (const auto& [address, bytes] : ranges) {
    const MemoryPointer memory = find(address);
    if (memory == nullptr || address + bytes > memory->base() + memory->label->bytes)
      return INVALID_VALUE;
    touched.push_back(memory);
  }
  for (const MemoryPointer& memory : touched) ++memory->pending;
  stream_of(stream)->push([touched, work = std::move(work)] {
    work();
    for (const MemoryPointer& memory : touched) --memory->pending;
  });
  return OK;
}

Result launch(Stream stream, uint64_t address, size_t bytes, std::function<void()> work) {
  return launch(stream, {{address, bytes}}, std::move(work));
}

// The page-locked memory that has all these bytes; null where none has.
Locked* locked_at(const void* from, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(from);
  auto found = process.locked.upper_bound(address);
  if (found == process.locked.begin()) return nullptr;
  --found;
  return address + bytes <= found->first + found->second.bytes ? &found->second : nullptr;
}

// A slow kernel: FAKE_CUDA_WORK_US for the whole, in slices, so that late writes are seen.
void fill_slowly(uint64_t address, unsigned value, size_t count, long microseconds) {
  constexpr size_t slices = 16;
  auto* words = reinterpret_cast<uint32_t*>(address);
  for (size_t slice = 0; slice < slices; ++slice) {
    for (size_t i = count * slice / slices; i < count * (slice + 1) / slices; ++i) words[i] = value;
    nap(microseconds / static_cast<long>(slices));
  }
}

}  // namespace

// ---- what the tests do to it -------------------------------------------------------------------

EXPORT Result fakeAllocateExpandable(DevicePointer* address, size_t bytes) {
  if (!has_context()) return INVALID_CONTEXT;
  return allocate(address, bytes, true);
}
// At its end a capture says whether it has become a graph.
EXPORT Result fakeCapture(Stream stream, int on) {
  StreamThread& captured = *stream_of(stream);
  captured.capturing = on != 0;
  if (on != 0) captured.capture_broken = false;
  return captured.capture_broken ? CAPTURE_INVALIDATED : OK;
}
// A stream that is held does nothing until it is let go.
EXPORT void fakeHold(Stream stream, int on) { stream_of(stream)->hold(on != 0); }
// From here on it does nothing until somebody waits for it, or asks for it by fakeRun.
EXPORT void fakeLate(int how) {
  if (is_late() && how == 0) drive(all_idle);
  late = static_cast<Lateness>(how);
  for (StreamThread* stream : all_streams()) stream->changed.notify_all();
}
EXPORT void fakeRun() { drive(all_idle); }
EXPORT int fakeIdle() { return all_idle(); }
// Bytes that are allocated, by whatever this process has run until now.
EXPORT size_t fakeInUse() {
  const std::lock_guard lock(process.mutex);
  return process.in_use;
}
// Refuses a call when it was made so many times, and from then on; none with an empty name.
EXPORT void fakeRefuse(const char* call, int before) {
  const std::lock_guard lock(calls.mutex);
  calls.made.clear();
  calls.refused = call;
  calls.before = before;
}
// What this thread calls is counted and refused again only when this is off: it is torch's.
EXPORT void fakeOthersCall(int on) { others_call = on != 0; }
// The calls since fakeRefuse, and how often each was made, with spaces between.
EXPORT const char* fakeCalls() {
  static std::string names;
  const std::lock_guard lock(calls.mutex);
  names.clear();
  for (const auto& [call, made] : calls.made) names += call + " " + std::to_string(made) + " ";
  return names.c_str();
}
// From here on the device's work has failed.
EXPORT void fakeBreak() { process.broken = true; }

// ---- what the extension calls ------------------------------------------------------------------

EXPORT Result cuInit(unsigned) {
  if (in_host_function) misuse("CUDA was called from a host function");
  if (setting("FAKE_CUDA_NO_DEVICE", 0) != 0) return NO_DEVICE;
  if ((process.pid != 0 && process.pid != getpid()) || !allowed(__func__)) return NOT_INITIALIZED;
  process.pid = getpid();
  return OK;
}

namespace {

// Names are cuda.h's, texts libcudart's; tests/cuda/test_driver.py compares them.
struct ErrorText {
  const char *name, *text;
};
const std::map<Result, ErrorText> error_texts{
    {OK, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {NO_BINARY_FOR_GPU,
     {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {ALREADY_LOCKED,
     {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
      "part or all of the requested memory range is already mapped"}},
    {NOT_LOCKED,
     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
      "pointer does not correspond to a registered memory region"}},
    {CAPTURE_UNSUPPORTED,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {CAPTURE_INVALIDATED,
     {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
      "operation failed due to a previous error during capture"}}};

Result error_text(Result result, const char* ErrorText::* part, const char** text) {
  const auto found = error_texts.find(result);
  *text = found == error_texts.end() ? nullptr : found->second.*part;
  return *text == nullptr ? INVALID_VALUE : OK;
}

}  // namespace

EXPORT Result cuGetErrorName(Result result, const char** name) {
  return error_text(result, &ErrorText::name, name);
}

EXPORT Result cuGetErrorString(Result result, const char** text) {
  return error_text(result, &ErrorText::text, text);
}

EXPORT Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(devices().size());
  return usable() ? OK : NOT_INITIALIZED;
}

EXPORT Result cuDeviceGet(Device* device, int ordinal) {
  if (!usable()) return NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= static_cast<int>(devices().size())) return INVALID_DEVICE;
  *device = ordinal;
  return OK;
}

EXPORT Result cuDeviceGetUuid_v2(UuidBytes* uuid, Device device) {
  if (!usable()) return NOT_INITIALIZED;
  std::memset(uuid->bytes, devices().at(static_cast<size_t>(device)), sizeof uuid->bytes);
  return OK;
}

EXPORT Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (!usable()) return NOT_INITIALIZED;
  *context = &contexts[device];
  contexts[device] = 1;
  return OK;
}

EXPORT Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  if (!usable()) return NOT_INITIALIZED;
  *flags = 0;
  *active = contexts[device];
  return OK;
}

EXPORT Result cuCtxGetCurrent(Context* context) {
  if (!usable()) return NOT_INITIALIZED;
  *context = current;
  return OK;
}

EXPORT Result cuCtxSetCurrent(Context context) {
  if (!usable()) return NOT_INITIALIZED;
  current = context;
  return OK;
}

EXPORT Result cuCtxSynchronize() {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  wait_for_all();
  return process.broken ? ILLEGAL_ADDRESS : OK;
}

EXPORT Result cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
  if (!has_context()) return INVALID_CONTEXT;
  return allocate(address, bytes, false);
}

EXPORT Result cuMemFree_v2(DevicePointer address) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  wait_for_all();
  const MemoryPointer memory = find(address);
  if (memory == nullptr || memory->imported || address != memory->base()) return INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(process.mutex);
  if (flock(memory->fd, LOCK_EX | LOCK_NB) != 0 && setting("FAKE_CUDA_LENIENT", 0) == 0)
    misuse("memory was freed while another process has it open");
  process.in_use -= memory->label->bytes;
  unmap(memory);
  return OK;
}

EXPORT Result cuMemsetD32_v2(DevicePointer address, unsigned value, size_t count) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  return launch(nullptr, address, 4 * count, [=] { fill_slowly(address, value, count, 0); });
}

EXPORT Result cuMemsetD32Async(DevicePointer address, unsigned value, size_t count, Stream stream) {
  if (!has_context()) return INVALID_CONTEXT;
  const long microseconds = setting("FAKE_CUDA_WORK_US", 0);
  return launch(stream, address, 4 * count,
                [=] { fill_slowly(address, value, count, microseconds); });
}

EXPORT Result cuMemcpyDtoH_v2(void* to, DevicePointer address, size_t bytes) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const Result result = launch(nullptr, address, bytes, [=] {
    std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
  });
  if (result == OK) stream_of(nullptr)->wait();
  return result;
}

EXPORT Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer address) {
  if (!has_context()) return INVALID_CONTEXT;
  const MemoryPointer memory = find(address);
  if (memory == nullptr) return INVALID_VALUE;
  *base = memory->base();
  *bytes = memory->label->bytes;
  return OK;
}

EXPORT Result cuPointerGetAttribute(void* value, int attribute, DevicePointer address) {
  if (!has_context()) return INVALID_CONTEXT;
  const MemoryPointer memory = find(address);
  if (memory == nullptr) return INVALID_VALUE;
  if (attribute == kDeviceOrdinal) {
    *static_cast<int*>(value) = static_cast<int>(devices().find(memory->label->device));
  } else if (attribute == kBufferId) {
    *static_cast<unsigned long long*>(value) = memory->label->id;
  } else if (attribute == kLegacyIpcCapable) {
    *static_cast<int*>(value) = !memory->imported && !memory->expandable;
  } else {
    return INVALID_VALUE;
  }
  return OK;
}

EXPORT Result cuIpcGetMemHandle(IpcHandleBytes* handle, DevicePointer address) {
  if (!has_context()) return INVALID_CONTEXT;
  const MemoryPointer memory = find(address);
  if (memory == nullptr || memory->imported || memory->expandable) return INVALID_VALUE;
  if (address != memory->base()) return INVALID_VALUE;
  const HandleWords words{kHandleMagic, getpid(), memory->fd, memory->label->id};
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &words, sizeof words);
  return OK;
}

EXPORT Result cuIpcOpenMemHandle_v2(DevicePointer* address, IpcHandleBytes handle, unsigned flags) {
  if (!has_context()) return INVALID_CONTEXT;
  const HandleWords words = words_of(handle);
  if (flags != kLazyPeerAccess || words.magic != kHandleMagic) return INVALID_VALUE;
  if (words.pid == getpid() || setting("FAKE_CUDA_NO_IPC", 0) != 0) return INVALID_CONTEXT;
  if (setting("FAKE_CUDA_DIES_OPENING", 0) != 0) std::abort();
  const std::lock_guard<std::mutex> lock(process.mutex);
  for (const auto& [base, memory] : process.memory) {
    if (!memory->imported || memory->label->id != words.id) continue;
    ++memory->references;
    *address = base;
    return OK;
  }
  nap(setting("FAKE_CUDA_OPEN_US", 200));
  if (setting("FAKE_CUDA_NO_IPC", 0) != 0) return INVALID_CONTEXT;  // as under MIG
  const std::string path = "/proc/" + std::to_string(words.pid) + "/fd/" + std::to_string(words.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return INVALID_VALUE;
  struct stat file{};
  if (fstat(fd, &file) != 0 || file.st_size < static_cast<off_t>(2 * kPage) ||
      flock(fd, LOCK_SH | LOCK_NB) != 0) {
    close(fd);
    return INVALID_VALUE;
  }
  const MemoryPointer memory = map_file(fd, static_cast<size_t>(file.st_size));
  if (memory == nullptr) return OUT_OF_MEMORY;
  // The number of the descriptor may be another allocation's by now.
  if (memory->label->id != words.id || memory->label->device != current_device()) {
    munmap(memory->label, memory->mapped);
    close(fd);
    return INVALID_VALUE;
  }
  memory->imported = true;
  process.memory[memory->base()] = memory;
  *address = memory->base();
  return OK;
}

EXPORT Result cuIpcCloseMemHandle(DevicePointer address) {
  if (!has_context()) return INVALID_CONTEXT;
  nap(setting("FAKE_CUDA_CLOSE_US", 0));
  const MemoryPointer memory = find(address);
  if (memory == nullptr || !memory->imported || address != memory->base()) return INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(process.mutex);
  if (--memory->references > 0) return OK;
  if (memory->pending > 0) misuse("memory was closed while work on it was under way");
  unmap(memory);
  return OK;
}

EXPORT Result cuStreamCreate(Stream* stream, unsigned) {
  if (!has_context()) return INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(process.mutex);
  StreamThread* made = new_stream();
  made->context = current;
  *stream = made;
  return OK;
}

EXPORT Result cuStreamWaitEvent(Stream stream, EventHandle handle, unsigned) {
  if (!has_context()) return INVALID_CONTEXT;
  const EventPointer event = event_of(handle);
  const uint64_t record = event->recorded;
  stream_of(stream)->push({[] {}, [=] { return event->has_passed(record); }});
  return OK;
}

EXPORT Result cuEventCreate(EventHandle* handle, unsigned flags) {
  if (!has_context()) return INVALID_CONTEXT;
  *handle = new EventPointer(std::make_shared<EventRecord>((flags & kWithoutTiming) == 0));
  return OK;
}

EXPORT Result cuEventDestroy_v2(EventHandle handle) {
  if (!has_context()) return INVALID_CONTEXT;
  delete static_cast<EventPointer*>(handle);
  return OK;
}

EXPORT Result cuEventRecord(EventHandle handle, Stream stream) {
  if (!has_context()) return INVALID_CONTEXT;
  const Context owner = stream_of(stream)->context;
  if (owner != nullptr && owner != current) return INVALID_HANDLE;
  const EventPointer event = event_of(handle);
  const uint64_t record = ++event->recorded;
  stream_of(stream)->push([=] {
    event->passed_ns = std::chrono::steady_clock::now().time_since_epoch().count();
    event->passed = record;
  });
  return OK;
}

EXPORT Result cuEventElapsedTime(float* milliseconds, EventHandle from, EventHandle to) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const EventPointer &begin = event_of(from), &end = event_of(to);
  if (!begin->timed || !end->timed) return INVALID_HANDLE;
  if (!begin->has_passed(begin->recorded) || !end->has_passed(end->recorded)) return NOT_READY;
  *milliseconds = static_cast<float>(end->passed_ns - begin->passed_ns) / 1e6f;
  return OK;
}

EXPORT Result cuEventQuery(EventHandle handle) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  if (process.broken) return ILLEGAL_ADDRESS;
  const EventPointer& event = event_of(handle);
  return event->has_passed(event->recorded) ? OK : NOT_READY;
}

EXPORT Result cuEventSynchronize(EventHandle handle) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const EventPointer event = event_of(handle);
  const uint64_t record = event->recorded;
  if (is_late()) drive([&] { return event->has_passed(record); });
  while (!event->has_passed(record)) nap(20);
  return process.broken ? ILLEGAL_ADDRESS : OK;
}

EXPORT Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  if (!has_context()) return INVALID_CONTEXT;
  if (setting("FAKE_CUDA_NO_LOCKING", 0) != 0) return OUT_OF_MEMORY;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(process.mutex);
  const auto address = reinterpret_cast<uint64_t>(memory);
  const auto behind = process.locked.lower_bound(address + bytes);
  if (behind != process.locked.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second.bytes > address) return ALREADY_LOCKED;
  }
  process.locked[address] = {bytes};
  return OK;
}

EXPORT Result cuMemHostUnregister(void* memory) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  const std::lock_guard<std::mutex> lock(process.mutex);
  const auto found = process.locked.find(reinterpret_cast<uint64_t>(memory));
  if (found == process.locked.end()) return NOT_LOCKED;
  if (found->second.pending > 0) misuse("page-locked memory was let go under a copy from it");
  process.locked.erase(found);
  return OK;
}

EXPORT Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes,
                                   Stream stream) {
  if (!has_context()) return INVALID_CONTEXT;
  {
    const std::lock_guard<std::mutex> lock(process.mutex);
    Locked* source = locked_at(from, bytes);
    if (source == nullptr) misuse("a copy that does not wait, from memory that is not page-locked");
    ++source->pending;
  }
  return launch(stream, to, bytes, [=] {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    const std::lock_guard<std::mutex> lock(process.mutex);
    --locked_at(from, bytes)->pending;
  });
}

EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, Stream stream) {
  if (!has_context()) return INVALID_CONTEXT;
  return launch(stream, from, bytes,
                [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}

EXPORT Result cuThreadExchangeStreamCaptureMode(int* mode) {
  if (!usable()) return NOT_INITIALIZED;
  std::swap(capture_mode, *mode);
  return OK;
}

// ---- kernels, each a function of the host on the stream's thread --------------------------------

namespace {

struct Launch {
  unsigned across, down, threads;
  void** arguments;
};
struct Kernel {
  const char* name;
  Result (*launch)(Stream stream, const Launch& given);
};

using Augment = void (*)(uint64_t program, uint64_t work, unsigned blocks, unsigned threads);
Augment augment = nullptr;  // the test's

Result launch_augment(Stream stream, const Launch& given) {
  const uint64_t program = *static_cast<uint64_t*>(given.arguments[0]);
  const uint64_t work = *static_cast<uint64_t*>(given.arguments[1]);
  // Work on an address that the device does not have breaks it.
  if (find(work) == nullptr) misuse("a kernel was given working memory that is not the device's");
  const auto [across, threads] = std::pair(given.across, given.threads);
  return launch(stream, program, 1, [=] { augment(program, work, across, threads); });
}

// It finds in its argument what it touches.
Result launch_conversion(Stream stream, const Launch& given) {
  const auto rows = *static_cast<const fusionloader::device::LevelRows*>(given.arguments[0]);
  const size_t last = (rows.first_row + given.down) * size_t{rows.row_levels};
  const size_t channels = rows.row_levels / rows.plane_levels;
  const std::vector<Range> touched{{rows.levels, last},
                                   {rows.elements, last * rows.element_bytes},
                                   {rows.table, channels * 256 * rows.element_bytes}};
  const unsigned down = given.down, lanes = given.across * given.threads;
  return launch(stream, touched, [=] {
    for (unsigned row = 0; row < down; ++row)
      for (unsigned first = 0; first < lanes; ++first)
        fusionloader::device::convert_row(rows, row, first, lanes);
  });
}

Result launch_programs(Stream stream, const Launch& given) {
  using namespace fusionloader::device;
  const auto rows = *static_cast<const ProgramRows*>(given.arguments[0]);
  if (given.threads != unsigned{threads_per_block}) misuse("a team of another size");
  const unsigned count = given.across;
  const uint64_t last = uint64_t{rows.first_row} + count;
  const std::vector<Range> touched{{rows.rows, last * rows.row_bytes},
                                   {rows.results, last * rows.result_bytes},
                                   {rows.table, 256},
                                   {rows.work, count * rows.work_bytes}};
  return launch(stream, touched, [=] {
    const auto scratch = std::make_unique<Scratch>();
    OneLane lane(*scratch);
    for (unsigned row = 0; row < count; ++row) augment_row(lane, rows, row);
  });
}

Kernel kernels[] = {{"fusionloader_augment", &launch_augment},
                    {"fusionloader_convert_levels", &launch_conversion},
                    {"fusionloader_augment_rows", &launch_programs}};

bool has_function(const char* image, const std::string& name) {
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0)
    return std::strstr(image, (".entry " + name + "(").c_str()) != nullptr;
  const auto* file = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + file->e_shoff);
  for (int i = 0; i < file->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image + sections[i].sh_offset);
    const char* names = image + sections[sections[i].sh_link].sh_offset;
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s)
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && names + symbols[s].st_name == name)
        return true;
  }
  return false;
}

}  // namespace

EXPORT void fakeKernel(Augment function) { augment = function; }

EXPORT Result cuDeviceGetAttribute(int* value, int which, Device) {
  if (!usable()) return NOT_INITIALIZED;
  const int architecture = static_cast<int>(setting("FAKE_CUDA_ARCHITECTURE", 90));
  if (which != kComputeMajor && which != kComputeMinor) return INVALID_VALUE;
  *value = which == kComputeMajor ? architecture / 10 : architecture % 10;
  return OK;
}

EXPORT Result cuModuleLoadData(Module* module, const void* image) {
  if (!has_context()) return INVALID_CONTEXT;
  if (setting("FAKE_CUDA_TOO_OLD", 0) != 0) return NO_BINARY_FOR_GPU;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0 && std::memcmp(image, "//", 2) != 0)
    return INVALID_IMAGE;
  *module = const_cast<void*>(image);
  return OK;
}

EXPORT Result cuModuleUnload(Module) { return has_context() ? OK : INVALID_CONTEXT; }

EXPORT Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  if (!has_context()) return INVALID_CONTEXT;
  if (!has_function(static_cast<const char*>(module), name)) return NOT_FOUND;
  for (Kernel& kernel : kernels) {
    if (std::string(kernel.name) != name) continue;
    *function = &kernel;
    return OK;
  }
  return NOT_FOUND;
}

EXPORT Result cuLaunchKernel(Function function, unsigned x, unsigned y, unsigned z,
                             unsigned threads, unsigned across, unsigned deep, unsigned shared,
                             Stream stream, void** arguments, void** extra) {
  if (!has_context()) return INVALID_CONTEXT;
  if (x < 1 || y < 1 || y > 65535 || z != 1 || threads > 1024 || across != 1 || deep != 1 ||
      shared != 0 || extra != nullptr)
    return INVALID_VALUE;
  return static_cast<Kernel*>(function)->launch(stream, {x, y, threads, arguments});
}

EXPORT Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  *memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard<std::mutex> lock(process.mutex);
  process.locked[reinterpret_cast<uint64_t>(*memory)] = {bytes};
  return OK;
}

EXPORT Result cuMemFreeHost(void* memory) {
  const Result result = cuMemHostUnregister(memory);
  if (result == OK) std::free(memory);
  return result;
}

EXPORT Result cuStreamSynchronize(Stream stream) {
  if (!has_context()) return INVALID_CONTEXT;
  if (breaks_a_capture()) return CAPTURE_UNSUPPORTED;
  stream_of(stream)->wait();
  return process.broken ? ILLEGAL_ADDRESS : OK;
}

EXPORT Result cuStreamIsCapturing(Stream stream, int* status) {
  *status = stream_of(stream)->capturing ? 1 : 0;
  return has_context() ? OK : INVALID_CONTEXT;
}

EXPORT Result cuLaunchHostFunc(Stream stream, HostFunction function, void* argument) {
  if (!has_context()) return INVALID_CONTEXT;
  stream_of(stream)->push([=] {
    in_host_function = true;
    function(argument);
    in_host_function = false;
  });
  return OK;
}
