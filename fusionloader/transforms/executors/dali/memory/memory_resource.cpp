// DALI's device memory: its own, and borrowed memory when that has run out.
//
// Built by `fusionloader build-dali` for one exact version of DALI, whose classes it derives from.
// So it is no part of the extension, and calls the extension's pool by two functions.
#include <dali/core/mm/default_resources.h>
#include <dali/core/mm/with_upstream.h>
#include <sys/types.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <utility>

namespace fusionloader {
namespace {

namespace mm = dali::mm;
using Kind = mm::memory_kind::device;

constexpr size_t kPoolAlign = 512;

}  // namespace

// See csrc/cuda/pool.cpp. Null and false mean failure.
struct BorrowedPool {
  void* (*allocate)(ssize_t bytes, int device, void* stream);
  bool (*retire)(void* address);
};

// As safe for several threads as `own` is.
class BorrowingResource final : public mm::device_async_resource, public mm::with_upstream<Kind> {
 public:
  BorrowingResource(std::shared_ptr<mm::device_async_resource> own, BorrowedPool pool, int device)
      : own_(std::move(own)), pool_(pool), device_(device) {}

  // DALI's ReleaseUnusedMemory finds DALI's own pool by this.
  mm::memory_resource<Kind>* upstream() const override { return own_.get(); }

 private:
  void* do_allocate(size_t bytes, size_t align) override {
    return own_or_borrowed(bytes, align, [&] { return own_->allocate(bytes, align); });
  }

  void* do_allocate_async(size_t bytes, size_t align, mm::stream_view stream) override {
    return own_or_borrowed(bytes, align,
                           [&] { return own_->allocate_async(bytes, align, stream); });
  }

  void do_deallocate(void* address, size_t bytes, size_t align) override {
    if (!pool_.retire(address)) own_->deallocate(address, bytes, align);
  }

  // Work launched on the stream may still use the memory. So borrowed memory is not reused before
  // the device has been synchronized: the stream itself may no longer exist by then.
  void do_deallocate_async(void* address, size_t bytes, size_t align,
                           mm::stream_view stream) override {
    if (!pool_.retire(address)) own_->deallocate_async(address, bytes, align, stream);
  }

  bool do_is_equal(const mm::memory_resource<Kind>& other) const noexcept override {
    return this == &other;
  }

  // No work uses memory that the pool gives: any stream may use it at once.
  template <typename Own>
  void* own_or_borrowed(size_t bytes, size_t align, const Own& own) {
    try {
      return own();
    } catch (const std::bad_alloc&) {
      void* found = nullptr;
      if (align <= kPoolAlign)
        found = pool_.allocate(static_cast<ssize_t>(bytes), device_, nullptr);
      if (found == nullptr) throw;
      return found;
    }
  }

  const std::shared_ptr<mm::device_async_resource> own_;
  const BorrowedPool pool_;
  const int device_;
};

}  // namespace fusionloader

// DALI's base class waits for a stream in functions that are overridden above, and the linker needs
// what they call. These are never called. The CUDA runtime would be a megabyte, or another version.
extern "C" {
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGetLastError() { return cudaErrorNotSupported; }
const char* cudaGetErrorName(cudaError_t) { return "none"; }
const char* cudaGetErrorString(cudaError_t) { return "none"; }

__attribute__((visibility("default"))) const char* fl_dali_version() {
  return FUSIONLOADER_DALI_VERSION;
}

// Must be called once for a device, before DALI first allocates on it: its decoders keep the
// resource that they found. On failure returns false and writes `why`; DALI is then unchanged.
__attribute__((visibility("default"))) bool fl_dali_install(int device,
                                                            void* (*allocate)(ssize_t, int, void*),
                                                            bool (*retire)(void*), char* why,
                                                            size_t why_bytes) {
  try {
    auto own = dali::mm::ShareDefaultDeviceResource(device);
    dali::mm::SetDefaultDeviceResource(
        device, std::make_shared<fusionloader::BorrowingResource>(
                    std::move(own), fusionloader::BorrowedPool{allocate, retire}, device));
    return true;
  } catch (const std::exception& error) {
    std::snprintf(why, why_bytes, "%s", error.what());
    return false;
  }
}
}
