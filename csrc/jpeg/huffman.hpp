#pragma once
// Tables that decode Huffman codes of coefficients, more than one at a look-up where they are
// short.
#include <array>
#include <cstddef>
#include <cstdint>

#include "jpeg/scan.hpp"

namespace fusionloader {

// Codes of any length, bit by bit: what the faster tables are made from, and what is asked where
// they do not know.
class Codes {
 public:
  // False for a code that libjpeg refuses too.
  bool build(const HuffmanCode& code);
  // The symbol whose code begins the 16 bits `next`, and that code's length; -1 if there is none.
  int symbol(uint32_t next, unsigned& length) const;
  bool was_built_from(const HuffmanCode& code) const;

  // table[i]: the symbol whose code begins the `bits` bits i, and its length shifted left by 8; 0
  // if the code is longer or none.
  void fill(unsigned bits, uint16_t* table) const;

 private:
  HuffmanCode code_{};
  size_t symbols_ = 0;
  bool built_ = false;
  // Of each length: the first 16 bits behind its codes, and from a code to the place of its symbol.
  std::array<uint32_t, 17> limits_{};
  std::array<int32_t, 17> offsets_{};
};

// How far a coefficient's symbol moves on in the order of coding when it ends the block: beyond 63,
// and such that the bit that overlong runs set stays clear.
constexpr unsigned end_of_block = 128;
constexpr unsigned overlong = 64;

struct DcTable {
  static constexpr unsigned bits = 10;
  std::array<uint16_t, 1 << bits> sizes;  // like Codes::fill
  Codes codes;

  bool build(const HuffmanCode& code);
};

// One or two symbols: the first with its value, the last without.
struct SymbolPair {
  uint8_t length;         // of all codes and values, in bits; 0: ask Codes
  uint8_t first_length;   // of the first alone
  uint8_t first_advance;  // in the order of coding
  uint8_t before_last;    // advance that must leave a place in the block for the last to follow
  uint8_t advance;        // of both
  uint8_t last_size;      // of the last symbol's value, in bits
  int16_t first_value;
};

// As many symbols as fit, without their values; the fields mean the same.
struct SymbolRun {
  uint8_t length, before_last, advance;
};

struct AcTable {
  static constexpr unsigned pair_bits = 11, run_bits = 11;
  // SymbolPair and SymbolRun byte by byte, the first field lowest: one load for all.
  std::array<uint64_t, 1 << pair_bits> pairs;
  std::array<uint32_t, 1 << run_bits> runs;
  Codes codes;

  bool build(const HuffmanCode& code);
};

// Tables of the codes seen last: most files have the same ones.
template <class Table>
class TableCache {
 public:
  // Null for a code that is none. Valid until `capacity` - 1 other codes have been asked for.
  const Table* find(const HuffmanCode& code) {
    size_t oldest = 0;
    for (size_t i = 0; i < capacity; ++i) {
      if (entries_[i].table.codes.was_built_from(code)) {
        entries_[i].used = ++clock_;
        return &entries_[i].table;
      }
      if (entries_[i].used < entries_[oldest].used) oldest = i;
    }
    entries_[oldest].used = ++clock_;
    return entries_[oldest].table.build(code) ? &entries_[oldest].table : nullptr;
  }

 private:
  static constexpr size_t capacity = 6;
  struct Entry {
    Table table;
    uint64_t used = 0;
  };
  std::array<Entry, capacity> entries_{};
  uint64_t clock_ = 0;
};

}  // namespace fusionloader
