#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cuda/error.hpp"

namespace fusionloader::cuda {
namespace {

Stream as_stream(uint64_t number) { return reinterpret_cast<Stream>(number); }

std::string name_of_library() {
  const char* chosen = std::getenv("FUSIONLOADER_LIBCUDA");
  return chosen != nullptr && *chosen != 0 ? chosen : "libcuda.so.1";
}

}  // namespace

Driver::Driver() : library_(name_of_library()) {
  void* library = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(Fault::unavailable, std::string("no CUDA driver on this machine: ") + dlerror());
#define FUSIONLOADER_ENTRY(name, symbol, arguments)                            \
  table_.name = reinterpret_cast<Result(*) arguments>(dlsym(library, symbol)); \
  if (table_.name == nullptr)                                                  \
    throw Error(Fault::unavailable,                                            \
                library_ + " does not have " symbol ": the CUDA driver is too old, 12 is needed");
  FUSIONLOADER_CUDA_ENTRY_POINTS(FUSIONLOADER_ENTRY)
#undef FUSIONLOADER_ENTRY
}

Driver& Driver::get() {
  static Driver& driver = *new Driver;  // the program may free memory while it exits
  driver.initialize();
  return driver;
}

void Driver::initialize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pid_ == getpid()) return;
  if (pid_ != 0)
    throw Error(Fault::unavailable, "CUDA was initialised in process " + std::to_string(pid_) +
                                        " and cannot be used after fork (now process " +
                                        std::to_string(getpid()) +
                                        "): use the 'spawn' start method");
  check(table_.cuInit(0), "cuInit");
  pid_ = getpid();
}

void Driver::check(Result result, const char* call) const {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  table_.cuGetErrorName(result, &name);
  table_.cuGetErrorString(result, &text);
  throw Error(Fault::cuda,
              std::string(call) + " failed: " + (name != nullptr ? name : "unknown error") + " (" +
                  std::to_string(result) + "): " + (text != nullptr ? text : "no text"),
              result);
}

int Driver::device_count() {
  int count = 0;
  check(table_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

Device Driver::handle_of(int device) {
  Device handle = 0;
  check(table_.cuDeviceGet(&handle, device), "cuDeviceGet");
  return handle;
}

Uuid Driver::uuid(int device) {
  UuidBytes bytes{};
  check(table_.cuDeviceGetUuid(&bytes, handle_of(device)), "cuDeviceGetUuid");
  Uuid uuid;
  std::memcpy(uuid.data(), bytes.bytes, uuid.size());
  return uuid;
}

int Driver::architecture(int device) {
  int major = 0, minor = 0;
  const Device handle = handle_of(device);
  check(table_.cuDeviceGetAttribute(&major, kComputeMajor, handle), "cuDeviceGetAttribute");
  check(table_.cuDeviceGetAttribute(&minor, kComputeMinor, handle), "cuDeviceGetAttribute");
  return 10 * major + minor;
}

std::optional<int> Driver::find_device(const Uuid& uuid) {
  for (int device = 0; device < device_count(); ++device)
    if (this->uuid(device) == uuid) return device;
  return std::nullopt;
}

bool Driver::has_context(int device) {
  unsigned flags = 0;
  int active = 0;
  check(table_.cuDevicePrimaryCtxGetState(handle_of(device), &flags, &active),
        "cuDevicePrimaryCtxGetState");
  return active != 0;
}

std::optional<int> Driver::device_of(uint64_t address) {
  // Any context can tell; making one just for that would cost some memory of the device.
  for (int candidate = 0; candidate < device_count(); ++candidate) {
    if (!has_context(candidate)) continue;
    int device = 0;
    if (OnDevice(candidate).attribute(&device, kDeviceOrdinal, address)) return device;
  }
  return std::nullopt;
}

Context Driver::primary_context(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = contexts_.find(device);
  if (known != contexts_.end()) return known->second;
  Context context = nullptr;
  check(table_.cuDevicePrimaryCtxRetain(&context, handle_of(device)), "cuDevicePrimaryCtxRetain");
  contexts_.emplace(device, context);
  return context;
}

OnDevice::OnDevice(int device) : driver_(Driver::get()), cuda_(driver_.table_) {
  const Context wanted = driver_.primary_context(device);
  driver_.check(cuda_.cuCtxGetCurrent(&before_), "cuCtxGetCurrent");
  if (before_ == wanted) return;
  driver_.check(cuda_.cuCtxSetCurrent(wanted), "cuCtxSetCurrent");
  changed_ = true;
}

OnDevice::~OnDevice() {
  if (changed_) cuda_.cuCtxSetCurrent(before_);
}

bool OnDevice::attribute(void* value, int which, uint64_t address) const {
  const Result result = cuda_.cuPointerGetAttribute(value, which, address);
  if (result == kInvalidValue) return false;
  driver_.check(result, "cuPointerGetAttribute");
  return true;
}

std::optional<Allocation> OnDevice::allocation_of(uint64_t address) const {
  unsigned long long id = 0;
  if (!attribute(&id, kBufferId, address)) return std::nullopt;
  DevicePointer base = 0;
  size_t bytes = 0;
  driver_.check(cuda_.cuMemGetAddressRange(&base, &bytes, address), "cuMemGetAddressRange");
  return Allocation{base, bytes, id};
}

bool OnDevice::can_be_opened_elsewhere(uint64_t address) const {
  int capable = 0;
  return attribute(&capable, kLegacyIpcCapable, address) && capable != 0;
}

IpcHandle OnDevice::export_handle(uint64_t base) const {
  IpcHandleBytes bytes{};
  driver_.check(cuda_.cuIpcGetMemHandle(&bytes, base), "cuIpcGetMemHandle");
  IpcHandle handle;
  std::memcpy(handle.data(), bytes.reserved, handle.size());
  return handle;
}

uint64_t OnDevice::open(const IpcHandle& handle) const {
  IpcHandleBytes bytes{};
  std::memcpy(bytes.reserved, handle.data(), handle.size());
  DevicePointer base = 0;
  driver_.check(cuda_.cuIpcOpenMemHandle(&base, bytes, kLazyPeerAccess), "cuIpcOpenMemHandle");
  return base;
}

void OnDevice::close(uint64_t base) const {
  driver_.check(cuda_.cuIpcCloseMemHandle(base), "cuIpcCloseMemHandle");
}

bool OnDevice::is_capturing(uint64_t stream) const {
  int status = kNotCapturing;
  driver_.check(cuda_.cuStreamIsCapturing(as_stream(stream), &status), "cuStreamIsCapturing");
  return status != kNotCapturing;
}

void OnDevice::call_after(uint64_t stream, HostFunction function, void* argument) const {
  driver_.check(cuda_.cuLaunchHostFunc(as_stream(stream), function, argument), "cuLaunchHostFunc");
}

void OnDevice::synchronize(uint64_t stream) const {
  const RelaxedCapture relaxed(*this);
  driver_.check(cuda_.cuStreamSynchronize(as_stream(stream)), "cuStreamSynchronize");
}

void OnDevice::synchronize() const { driver_.check(cuda_.cuCtxSynchronize(), "cuCtxSynchronize"); }

uint64_t OnDevice::allocate(size_t bytes) const {
  DevicePointer address = 0;
  driver_.check(cuda_.cuMemAlloc(&address, bytes), "cuMemAlloc");
  return address;
}

void OnDevice::free(uint64_t address) const {
  const RelaxedCapture relaxed(*this);  // the last reference may go at any time
  driver_.check(cuda_.cuMemFree(address), "cuMemFree");
}

void OnDevice::fill(uint64_t address, uint32_t value, size_t count) const {
  driver_.check(cuda_.cuMemsetD32(address, value, count), "cuMemsetD32");
  // To device memory this returns before it is done.
  synchronize();
}

void OnDevice::read(void* to, uint64_t address, size_t bytes) const {
  driver_.check(cuda_.cuMemcpyDtoH(to, address, bytes), "cuMemcpyDtoH");
}

void OnDevice::page_lock(void* memory, size_t bytes) const {
  const RelaxedCapture relaxed(*this);
  driver_.check(cuda_.cuMemHostRegister(memory, bytes, 0), "cuMemHostRegister");
}

void OnDevice::page_unlock(void* memory) const {
  const RelaxedCapture relaxed(*this);
  driver_.check(cuda_.cuMemHostUnregister(memory), "cuMemHostUnregister");
}

uint64_t OnDevice::make_stream() const {
  Stream stream = nullptr;
  driver_.check(cuda_.cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  return reinterpret_cast<uint64_t>(stream);
}

void OnDevice::copy(uint64_t to, const void* from, size_t bytes, uint64_t stream) const {
  driver_.check(cuda_.cuMemcpyHtoDAsync(to, from, bytes, as_stream(stream)), "cuMemcpyHtoDAsync");
}

void OnDevice::launch(Function function, Grid grid, uint64_t stream, void** arguments) const {
  driver_.check(cuda_.cuLaunchKernel(function, grid.across, grid.down, 1, grid.threads, 1, 1, 0,
                                     as_stream(stream), arguments, nullptr),
                "cuLaunchKernel");
}

Module OnDevice::load_module(const void* image) const {
  Module module = nullptr;
  driver_.check(cuda_.cuModuleLoadData(&module, image), "cuModuleLoadData");
  return module;
}

void OnDevice::unload(Module module) const {
  driver_.check(cuda_.cuModuleUnload(module), "cuModuleUnload");
}

Function OnDevice::function(Module module, const char* name) const {
  Function function = nullptr;
  driver_.check(cuda_.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

void* OnDevice::allocate_page_locked(size_t bytes) const {
  void* memory = nullptr;
  driver_.check(cuda_.cuMemHostAlloc(&memory, bytes, 0), "cuMemHostAlloc");
  return memory;
}

void OnDevice::free_page_locked(void* memory) const {
  driver_.check(cuda_.cuMemFreeHost(memory), "cuMemFreeHost");
}

EventHandle OnDevice::make_event(bool timed) const {
  EventHandle event = nullptr;
  driver_.check(cuda_.cuEventCreate(&event, timed ? kTimed : kWithoutTiming), "cuEventCreate");
  return event;
}

double OnDevice::seconds_between(EventHandle from, EventHandle to) const {
  float milliseconds = 0;
  driver_.check(cuda_.cuEventElapsedTime(&milliseconds, from, to), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

void OnDevice::destroy(EventHandle event) const {
  driver_.check(cuda_.cuEventDestroy(event), "cuEventDestroy");
}

void OnDevice::record(EventHandle event, uint64_t stream) const {
  driver_.check(cuda_.cuEventRecord(event, as_stream(stream)), "cuEventRecord");
}

void OnDevice::wait_for(EventHandle event) const {
  const RelaxedCapture relaxed(*this);
  driver_.check(cuda_.cuEventSynchronize(event), "cuEventSynchronize");
}

bool OnDevice::has_passed(EventHandle event) const {
  const RelaxedCapture relaxed(*this);
  const Result result = cuda_.cuEventQuery(event);
  if (result != kNotReady) driver_.check(result, "cuEventQuery");
  return result != kNotReady;
}

void OnDevice::hold_back(uint64_t stream, EventHandle event) const {
  driver_.check(cuda_.cuStreamWaitEvent(as_stream(stream), event, 0), "cuStreamWaitEvent");
}

void OnDevice::relax_captures() const {
  int mode = kRelaxedCapture;
  driver_.check(cuda_.cuThreadExchangeStreamCaptureMode(&mode),
                "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::RelaxedCapture(const OnDevice& on) : on_(on), before_(kRelaxedCapture) {
  on_.driver_.check(on_.cuda_.cuThreadExchangeStreamCaptureMode(&before_),
                    "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { on_.cuda_.cuThreadExchangeStreamCaptureMode(&before_); }

}  // namespace fusionloader::cuda
