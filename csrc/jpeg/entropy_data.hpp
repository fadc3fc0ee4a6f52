#pragma once
// The entropy-coded data of a scan without its stuffed bytes and restart markers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/bit_reader.hpp"
#include "jpeg/scan.hpp"

namespace fusionloader {

// What lies between two restart markers; bounds in bytes.
struct Segment {
  size_t begin, end;
};

class EntropyData {
 public:
  // Takes the data of a scan up to the first marker that does not belong in it. If that marker is
  // the end of the image, no damage whatsoever in the scan makes libjpeg, and so Pillow, give up
  // the image. Anything else is for them to judge: false if `strict`; otherwise what is in front of
  // it is taken.
  bool split(ByteView scan, bool with_restarts, bool strict);

  // Those in front of the first restart marker that is not the expected one.
  const std::vector<Segment>& segments() const { return segments_; }
  BitReader reader(const Segment& segment) const {
    return BitReader(bytes_.data(), size_, segment.begin);
  }
  // From a bit of a segment on.
  BitReader reader(const Segment& segment, size_t bit) const {
    BitReader bits(bytes_.data(), size_, std::clamp(bit / 8, segment.begin, segment.end));
    bits.refill();
    bits.drop(static_cast<unsigned>(bit % 8));
    return bits;
  }
  void release_large_buffers();

 private:
  std::vector<uint8_t> bytes_;  // bit_reader_slack bytes more than `size_`
  size_t size_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace fusionloader
