#include "jpeg/entropy_data.hpp"

#include <cstring>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr uint8_t first_restart = 0xD0, last_restart = 0xD7, end_of_image = 0xD9;

}  // namespace

bool EntropyData::split(ByteView scan, bool with_restarts, bool strict) {
  if (bytes_.size() < scan.size + bit_reader_slack) bytes_.resize(scan.size + bit_reader_slack);
  segments_.clear();
  size_ = 0;
  size_t begin = 0, from = 0;
  bool in_order = true;  // no marker yet that ends the usable data
  while (from < scan.size) {
    const auto* found =
        static_cast<const uint8_t*>(std::memchr(scan.data + from, 0xFF, scan.size - from));
    const size_t at = found ? static_cast<size_t>(found - scan.data) : scan.size;
    if (in_order) {
      std::memcpy(&bytes_[size_], scan.data + from, at - from);
      size_ += at - from;
    }
    size_t next = at + 1;
    while (next < scan.size && scan.data[next] == 0xFF) ++next;  // fill bytes
    if (next >= scan.size) break;
    const uint8_t code = scan.data[next];
    from = next + 1;
    if (code == 0) {
      if (next != at + 1) break;  // filled and stuffed: nobody writes that
      if (in_order) bytes_[size_++] = 0xFF;
      continue;
    }
    if (in_order) segments_.push_back({begin, size_});
    begin = size_;
    if (code >= first_restart && code <= last_restart) {
      const auto expected = static_cast<uint8_t>(first_restart + (segments_.size() - 1) % 8);
      in_order = in_order && with_restarts && code == expected;
      continue;
    }
    std::memset(&bytes_[size_], 0, bit_reader_slack);
    return code == end_of_image || !strict;
  }
  if (in_order) segments_.push_back({begin, size_});
  std::memset(&bytes_[size_], 0, bit_reader_slack);
  return !strict;
}

void EntropyData::release_large_buffers() {
  if (bytes_.size() > largest_kept_buffer) std::vector<uint8_t>().swap(bytes_);
  if (segments_.capacity() * sizeof(Segment) > largest_kept_buffer)
    std::vector<Segment>().swap(segments_);
}

}  // namespace fusionloader
