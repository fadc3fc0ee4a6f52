#pragma once
// Bits of a JPEG's entropy-coded data, first bit of a byte first.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fusionloader {

// Bytes that must be readable behind the data: the reader stays inside them however wrong the data
// is, and what it reads there is noticed afterwards by comparing positions.
constexpr size_t bit_reader_slack = 16;

// The one place of the decoder that follows a pointer without asking at each step.
class BitReader {
 public:
  BitReader() = default;
  // Starts `first` bytes into the `size` bytes at `data`.
  BitReader(const uint8_t* data, size_t size, size_t first)
      : data_(data), at_(data + first), limit_(data + size + 8) {}

  // At least 56 bits after this.
  void refill() {
    uint64_t next;
    std::memcpy(&next, at_, sizeof next);
    bits_ |= big_endian(next) >> count_;
    at_ += (63 - count_) >> 3;
    // Where the data ends early the position stays beyond its end, which is all that is asked then.
    at_ = at_ < limit_ ? at_ : limit_;
    count_ |= 56;
  }

  // The next `count` bits, 1 to 32 of them, as a number.
  uint32_t peek(unsigned count) const { return static_cast<uint32_t>(bits_ >> (64 - count)); }
  // The next bits at the upper end of a word, `skipped` bits further on.
  uint64_t ahead(uint64_t skipped) const { return bits_ << (skipped & 63); }
  // At most as many as there are.
  void drop(uint64_t count) {
    bits_ <<= count & 63;
    count_ -= count;
  }

  // Goes back over bits that were read; 49 of them or more are there afterwards.
  void put_back(size_t count) {
    const size_t to = position() - count;
    at_ = data_ + to / 8;
    bits_ = count_ = 0;
    refill();
    drop(to % 8);
  }

  // Any number of bits; as many are there afterwards as after put_back().
  void skip(size_t count) {
    const size_t to = position() + count, end = static_cast<size_t>(limit_ - data_);
    at_ = data_ + (to / 8 < end ? to / 8 : end);
    bits_ = count_ = 0;
    refill();
    drop(to % 8);
  }

  // Bits read since the beginning of the data; beyond its size if there were too few.
  size_t position() const { return static_cast<size_t>(at_ - data_) * 8 - count_; }

 private:
  static uint64_t big_endian(uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(value);
#else
    return value;
#endif
  }

  uint64_t bits_ = 0;
  uint64_t count_ = 0;
  const uint8_t* data_ = nullptr;
  const uint8_t* at_ = nullptr;
  const uint8_t* limit_ = nullptr;
};

}  // namespace fusionloader
