#pragma once
// The image that augmentation ops work on: 8-bit planes, each a flat array of width x height bytes.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace fusionloader {

using Color = std::array<uint8_t, 3>;  // red, green, blue; grey images use the first

// For vectors of bytes that start on a cache line, as vector loads that cross lines cost double.
// They grow without being filled.
template <class Value>
struct CacheLineAllocator {
  using value_type = Value;
  static constexpr std::align_val_t alignment{64};

  CacheLineAllocator() = default;
  template <class Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}
  Value* allocate(size_t count) {
    return static_cast<Value*>(::operator new(count * sizeof(Value), alignment));
  }
  void deallocate(Value* values, size_t) { ::operator delete(values, alignment); }
  template <class Other>
  void construct(Other* at) {
    ::new (static_cast<void*>(at)) Other;
  }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
  friend bool operator!=(const CacheLineAllocator&, const CacheLineAllocator&) { return false; }
};

class Planes {
 public:
  // Bytes that may be read and written behind each plane, so that kernels need no tail loops.
  static constexpr size_t slack = 64;

  // Contents are undefined afterwards. Memory only grows; release() gives it back.
  void reset(int channels, int width, int height) {
    channels_ = channels;
    width_ = width;
    height_ = height;
    stride_ = (size() + 2 * slack - 1) / slack * slack;
    const size_t needed = stride_ * static_cast<size_t>(channels) + slack;
    if (bytes_.size() >= needed) return;
    release();  // or what is there would be copied
    bytes_.resize(needed);
  }
  // Keeps the first plane, and the others as far as they stay.
  void set_channels(int channels) {
    channels_ = channels;
    const size_t needed = stride_ * static_cast<size_t>(channels) + slack;
    if (bytes_.size() < needed) bytes_.resize(needed);
  }
  // The image alone, not all of the memory that another has come to.
  void copy(const Planes& other) {
    reset(other.channels_, other.width_, other.height_);
    for (int channel = 0; channel < channels_; ++channel)
      std::memcpy(plane(channel), other.plane(channel), size());
  }
  void release() { Bytes().swap(bytes_); }

  int channels() const { return channels_; }  // 1 (grey) or 3 (red, green, blue)
  int width() const { return width_; }
  int height() const { return height_; }
  size_t size() const {  // pixels of a plane
    return static_cast<size_t>(width_) * static_cast<size_t>(height_);
  }
  size_t plane_stride() const { return stride_; }
  // The pixels rounded up to whole vectors, which the slack has room for.
  size_t padded_size() const { return (size() + slack - 1) / slack * slack; }
  size_t capacity() const { return bytes_.size(); }
  uint8_t* plane(int channel) { return bytes_.data() + stride_ * static_cast<size_t>(channel); }
  const uint8_t* plane(int channel) const {
    return bytes_.data() + stride_ * static_cast<size_t>(channel);
  }

 private:
  using Bytes = std::vector<uint8_t, CacheLineAllocator<uint8_t>>;

  int channels_ = 0, width_ = 0, height_ = 0;
  size_t stride_ = 0;
  Bytes bytes_;
};

}  // namespace fusionloader
