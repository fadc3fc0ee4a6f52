#pragma once
// Tables that decode Huffman codes of coefficients, more than one at a look-up where they are
// short.
#include <array>
#include <cstddef>
#include <cstdint>

#include "jpeg/block.hpp"
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

// Whether libjpeg takes a code for DC differences, and for AC coefficients.
bool is_dc_code(const HuffmanCode& code);
bool is_ac_code(const HuffmanCode& code);

// A symbol of a scan that is one of several. Bytes, as in SymbolPair.
struct alignas(4) ScanSymbol {
  // The last two end the reading of coefficients that goes symbol by symbol.
  enum Kind : uint8_t { value, zeros_only, run, unknown };

  uint8_t length;  // of code and value or, of a run, of the code alone
  uint8_t size;    // of the value or the run, in bits
  uint8_t zeros;   // in front of the value
  Kind kind;
};

// One symbol at a look-up: quickly made, for codes that are used once.
struct ScanTable {
  static constexpr unsigned bits = 10;
  std::array<ScanSymbol, 1 << bits> entries;
  Codes codes;

  bool build_dc(const HuffmanCode& code);
  bool build_ac(const HuffmanCode& code);
  // For a scan that refines coefficients, where a value is but a sign.
  bool build_refinement(const HuffmanCode& code);
};

// How symbols are meant, whose codes have that length.
inline ScanSymbol ac_symbol(unsigned symbol, unsigned length) {
  const auto size = static_cast<uint8_t>(symbol & 15), zeros = static_cast<uint8_t>(symbol >> 4);
  if (size) return {static_cast<uint8_t>(length + size), size, zeros, ScanSymbol::value};
  if (zeros == 15) return {static_cast<uint8_t>(length), 0, zeros, ScanSymbol::zeros_only};
  return {static_cast<uint8_t>(length), zeros, 0, ScanSymbol::run};
}

struct DcTable {
  static constexpr unsigned bits = 10;
  // The length of code and value, and the value's alone shifted left by 8; 0 if the code is longer
  // or none.
  std::array<uint16_t, 1 << bits> entries;
  Codes codes;

  bool build(const HuffmanCode& code);
};

// One or two symbols: the first with its value, the last without. Bytes, which are loaded in one
// instruction each; fields cut out of a word take more.
struct alignas(8) SymbolPair {
  uint8_t length;         // of all codes and values, in bits
  uint8_t last_value_at;  // length without the last value
  uint8_t first_advance;
  uint8_t advance;       // of both
  uint8_t last_spare;    // 63 less the bits of the last value
  uint8_t first_length;  // of the first symbol, as if it were alone
  int16_t first_value;   // 0 if it is alone
};

// As many symbols as fit, without their values.
struct alignas(4) SymbolRun {
  uint8_t length, advance;
  uint8_t before_last;  // advance of all but the last
};

struct AcTable {
  static constexpr unsigned pair_bits = 11, run_bits = 11;
  static_assert(run_bits <= pair_bits, "the first symbol of a pair is asked for those of a run");
  std::array<SymbolPair, 1 << pair_bits> pairs;
  std::array<SymbolRun, 1 << run_bits> runs;
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
