#pragma once
// The part of the CUDA driver's interface that is called here, declared by hand: the extension is
// built without a CUDA toolkit, loads on machines without a driver, and serves every CUDA from 12
// on. tests/cuda/abi_check.cpp compares it with cuda.h where there is one.
#include <cstddef>
#include <cstdint>

namespace fusionloader::cuda {

using Result = int;
using Device = int;
using DevicePointer = unsigned long long;
using Context = void*;
using Stream = void*;
using EventHandle = void*;
using Function = void*;
using HostFunction = void (*)(void*);
using Module = void*;
struct UuidBytes {
  char bytes[16];
};
struct IpcHandleBytes {
  char reserved[64];
};

constexpr Result kSuccess = 0, kInvalidValue = 1;
constexpr unsigned kLazyPeerAccess = 1;
constexpr int kBufferId = 7, kDeviceOrdinal = 9, kLegacyIpcCapable = 10;
constexpr int kNotCapturing = 0;
constexpr Result kNotReady = 600;
constexpr unsigned kNonBlocking = 1;  // a stream that does not wait for the default one
constexpr unsigned kTimed = 0, kWithoutTiming = 2;  // events
constexpr int kRelaxedCapture = 2;  // another stream's capture forbids this thread nothing
constexpr int kComputeMajor = 75, kComputeMinor = 76;

// Name in cuda.h, name in the library, arguments.
#define FUSIONLOADER_CUDA_ENTRY_POINTS(X)                                                      \
  X(cuInit, "cuInit", (unsigned))                                                              \
  X(cuGetErrorName, "cuGetErrorName", (Result, const char**))                                  \
  X(cuGetErrorString, "cuGetErrorString", (Result, const char**))                              \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int*))                                              \
  X(cuDeviceGet, "cuDeviceGet", (Device*, int))                                                \
  X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (UuidBytes*, Device))                               \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))                  \
  X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", (Device, unsigned*, int*))       \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (Context*))                                            \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (Context))                                             \
  X(cuCtxSynchronize, "cuCtxSynchronize", ())                                                  \
  X(cuMemAlloc, "cuMemAlloc_v2", (DevicePointer*, size_t))                                     \
  X(cuMemFree, "cuMemFree_v2", (DevicePointer))                                                \
  X(cuMemsetD32, "cuMemsetD32_v2", (DevicePointer, unsigned, size_t))                          \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void*, DevicePointer, size_t))                           \
  X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", (DevicePointer*, size_t*, DevicePointer)) \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", (void*, int, DevicePointer))               \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (IpcHandleBytes*, DevicePointer))                  \
  X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (DevicePointer*, IpcHandleBytes, unsigned))   \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (DevicePointer))                               \
  X(cuStreamSynchronize, "cuStreamSynchronize", (Stream))                                      \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", (Stream, int*))                                \
  X(cuLaunchHostFunc, "cuLaunchHostFunc", (Stream, HostFunction, void*))                       \
  X(cuMemHostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))                      \
  X(cuMemHostUnregister, "cuMemHostUnregister", (void*))                                       \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (DevicePointer, const void*, size_t, Stream))   \
  X(cuStreamCreate, "cuStreamCreate", (Stream*, unsigned))                                     \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (Stream, EventHandle, unsigned))                   \
  X(cuEventCreate, "cuEventCreate", (EventHandle*, unsigned))                                  \
  X(cuEventDestroy, "cuEventDestroy_v2", (EventHandle))                                        \
  X(cuEventRecord, "cuEventRecord", (EventHandle, Stream))                                     \
  X(cuEventQuery, "cuEventQuery", (EventHandle))                                               \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float*, EventHandle, EventHandle))              \
  X(cuEventSynchronize, "cuEventSynchronize", (EventHandle))                                   \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))            \
  X(cuLaunchKernel, "cuLaunchKernel",                                                          \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,   \
     void**, void**))                                                                          \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                         \
  X(cuModuleLoadData, "cuModuleLoadData", (Module*, const void*))                              \
  X(cuModuleUnload, "cuModuleUnload", (Module))                                                \
  X(cuModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))              \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                              \
  X(cuMemFreeHost, "cuMemFreeHost", (void*))

struct DriverTable {
#define FUSIONLOADER_ENTRY(name, symbol, arguments) Result(*name) arguments = nullptr;
  FUSIONLOADER_CUDA_ENTRY_POINTS(FUSIONLOADER_ENTRY)
#undef FUSIONLOADER_ENTRY
};

}  // namespace fusionloader::cuda
