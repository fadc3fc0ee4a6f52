// The resource for DALI over a stand-in of DALI's own: host memory, of which there is so much.
#include <algorithm>
#include <map>

#include "memory_resource.cpp"

namespace {

namespace mm = dali::mm;
using Kind = mm::memory_kind::device;

struct OutOfMemory final : std::bad_alloc {};

// Hands out addresses alone. What it did not give, it refuses to take back.
class OwnMemory final : public mm::device_async_resource {
 public:
  size_t left = 0;
  size_t mistakes = 0;
  mm::stream_view last_stream;

 private:
  void* do_allocate(size_t bytes, size_t) override {
    if (bytes > left) throw OutOfMemory();
    left -= bytes;
    const uintptr_t address = next_;
    next_ += std::max<size_t>(bytes, 1);
    live_[address] = bytes;
    return reinterpret_cast<void*>(address);
  }
  void* do_allocate_async(size_t bytes, size_t align, mm::stream_view stream) override {
    last_stream = stream;
    return do_allocate(bytes, align);
  }
  void do_deallocate(void* address, size_t bytes, size_t) override {
    const auto found = live_.find(reinterpret_cast<uintptr_t>(address));
    if (found == live_.end() || found->second != bytes) {
      ++mistakes;
      return;
    }
    left += bytes;
    live_.erase(found);
  }
  void do_deallocate_async(void* address, size_t bytes, size_t align,
                           mm::stream_view stream) override {
    last_stream = stream;
    do_deallocate(address, bytes, align);
  }

  uintptr_t next_ = 4096;
  std::map<uintptr_t, size_t> live_;
};

std::shared_ptr<OwnMemory> own;
std::shared_ptr<mm::device_async_resource> resource;

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void check_begin(size_t own_bytes, void* (*allocate)(ssize_t, int, void*),
                        bool (*retire)(void*)) {
  own = std::make_shared<OwnMemory>();
  own->left = own_bytes;
  resource = std::make_shared<fusionloader::BorrowingResource>(
      own, fusionloader::BorrowedPool{allocate, retire}, 0);
}

// The stream is never looked into: any number is one. Null where DALI would see bad_alloc.
EXPORT void* check_allocate(size_t bytes, size_t align, cudaStream_t stream, bool in_order) try {
  return in_order ? resource->allocate_async(bytes, align, stream)
                  : resource->allocate(bytes, align);
} catch (const std::bad_alloc&) {
  return nullptr;
}

EXPORT void check_free(void* address, size_t bytes, size_t align, cudaStream_t stream,
                       bool in_order) {
  if (in_order)
    resource->deallocate_async(address, bytes, align, stream);
  else
    resource->deallocate(address, bytes, align);
}

EXPORT size_t check_own_left() { return own->left; }
EXPORT size_t check_mistakes() { return own->mistakes; }
EXPORT cudaStream_t check_last_stream() { return own->last_stream.get(); }

// As DALI's ReleaseUnusedMemory looks for a pool, from the class that it knows.
EXPORT bool check_own_is_found() {
  const auto* found = dynamic_cast<mm::with_upstream<Kind>*>(resource.get());
  return found != nullptr && found->upstream() == own.get();
}
