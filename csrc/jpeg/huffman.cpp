#include "jpeg/huffman.hpp"

#include <algorithm>
#include <cstring>

namespace fusionloader {
namespace {

constexpr unsigned longest_value = 15;

// A coefficient from the bits of its value, which begin `bits`.
int value_of(uint32_t bits, unsigned size) {
  if (size == 0) return 0;
  const int value = static_cast<int>(bits);
  return value >> (size - 1) ? value : value - (1 << size) + 1;
}

// A symbol as it begins the bits that index a table of these.
struct Symbol {
  uint8_t code_length;  // 0: not known from these bits
  uint8_t length;       // with the value
  uint8_t size;         // of the value
  uint8_t advance;
};

Symbol symbol_of(uint16_t entry) {
  const unsigned length = entry >> 8, size = entry & 15, zeros = (entry & 0xFF) >> 4;
  const unsigned advance = size || zeros == 15 ? zeros + 1 : end_of_block;
  return {static_cast<uint8_t>(length), static_cast<uint8_t>(length + size),
          static_cast<uint8_t>(size), static_cast<uint8_t>(advance)};
}

uint8_t byte(unsigned value) { return static_cast<uint8_t>(value); }
uint8_t spare(unsigned size) { return byte(63 - size); }

// `known` holds the symbol of each `bits` bits, which begin the value `next`.
SymbolPair pair_at(uint32_t next, unsigned bits, const Symbol* known) {
  const Symbol first = known[next];
  if (!first.code_length) return {0, 0, unknown_code, unknown_code, spare(0), 0, 0};
  if (first.advance != end_of_block && first.length < bits) {
    const Symbol last = known[next << first.length & ((1u << bits) - 1)];
    if (last.code_length && first.length + last.code_length <= bits) {
      const uint32_t value = next >> (bits - first.length) & ((1u << first.size) - 1);
      return {byte(first.length + 0u + last.length),
              byte(first.length + 0u + last.code_length),
              first.advance,
              byte(first.advance + 0u + last.advance),
              spare(last.size),
              first.length,
              static_cast<int16_t>(value_of(value, first.size))};
    }
  }
  return {first.length,
          first.code_length,
          first.advance,
          first.advance,
          spare(first.size),
          first.length,
          0};
}

// Two runs must not take more bits than a refill gives.
constexpr unsigned longest_run = 28;

SymbolRun run_at(uint32_t next, unsigned bits, const Symbol* known) {
  const Symbol first = known[next];
  if (!first.code_length) return {0, unknown_code, 0};
  unsigned length = first.length, before_last = 0, advance = first.advance;
  while (advance < 64 && length < bits) {
    const Symbol last = known[next << length & ((1u << bits) - 1)];
    if (!last.code_length || length + last.code_length > bits || length + last.length > longest_run)
      break;
    before_last = advance;
    advance += last.advance;
    length += last.length;
  }
  return {byte(length), byte(advance), byte(before_last)};
}

}  // namespace

bool Codes::was_built_from(const HuffmanCode& code) const {
  return built_ && code.counts == code_.counts &&
         std::memcmp(code.symbols.data(), code_.symbols.data(), symbols_) == 0;
}

bool Codes::build(const HuffmanCode& code) {
  built_ = false;
  code_ = code;
  symbols_ = 0;
  uint32_t next = 0;
  for (unsigned length = 1; length <= 16; ++length) {
    offsets_[length] = static_cast<int32_t>(symbols_) - static_cast<int32_t>(next);
    symbols_ += code.counts[length];
    next += code.counts[length];
    // All ones is no code, of whatever length.
    if (symbols_ > code_.symbols.size() || (code.counts[length] && next >= 1u << length))
      return false;
    limits_[length] = next << (16 - length);
    next <<= 1;
  }
  return built_ = true;
}

int Codes::symbol(uint32_t next, unsigned& length) const {
  for (length = 1; length <= 16; ++length) {
    if (next >= limits_[length]) continue;
    const int32_t place = static_cast<int32_t>(next >> (16 - length)) + offsets_[length];
    return code_.symbols[static_cast<uint8_t>(place)];
  }
  return -1;
}

void Codes::fill(unsigned bits, uint16_t* table) const {
  size_t symbol = 0;
  uint16_t* end = table;
  for (unsigned length = 1; length <= bits; ++length) {
    const size_t run = size_t{1} << (bits - length);
    for (unsigned i = 0; i < code_.counts[length]; ++i, end += run)
      std::fill_n(end, run, static_cast<uint16_t>(length << 8 | code_.symbols[symbol++]));
  }
  std::fill(end, table + (size_t{1} << bits), uint16_t{0});
}

bool is_dc_code(const HuffmanCode& code) {
  // Symbols behind the last of the code may be anything: they are never met.
  size_t symbols = 0;
  for (unsigned length = 1; length <= 16; ++length) symbols += code.counts[length];
  const auto end = code.symbols.begin() + static_cast<ptrdiff_t>(std::min<size_t>(symbols, 256));
  return is_ac_code(code) &&
         std::all_of(code.symbols.begin(), end, [](uint8_t size) { return size <= longest_value; });
}

bool is_ac_code(const HuffmanCode& code) { return Codes().build(code); }

bool DcTable::build(const HuffmanCode& code) {
  if (!is_dc_code(code) || !codes.build(code)) return false;
  codes.fill(bits, entries.data());
  for (uint16_t& entry : entries) {
    const unsigned size = entry & 0xFF, length = entry >> 8;
    entry = static_cast<uint16_t>(size << 8 | (length + size));
  }
  return true;
}

namespace {

template <class Make>
bool build_table(ScanTable& table, const HuffmanCode& code, Make make) {
  if (!table.codes.build(code)) return false;
  std::array<uint16_t, size_t{1} << ScanTable::bits> symbols;
  table.codes.fill(ScanTable::bits, symbols.data());
  std::transform(symbols.begin(), symbols.end(), table.entries.begin(), [&](uint16_t entry) {
    return entry ? make(entry & 0xFFu, entry >> 8u) : ScanSymbol{0, 0, 0, ScanSymbol::unknown};
  });
  return true;
}

}  // namespace

bool ScanTable::build_dc(const HuffmanCode& code) {
  return build_table(*this, code, [](unsigned size, unsigned length) {
    return ScanSymbol{byte(length + size), byte(size), 0, ScanSymbol::value};
  });
}

bool ScanTable::build_ac(const HuffmanCode& code) { return build_table(*this, code, ac_symbol); }

bool ScanTable::build_refinement(const HuffmanCode& code) {
  return build_table(*this, code, [](unsigned symbol, unsigned length) {
    const ScanSymbol made = ac_symbol(symbol, length);
    return made.kind == ScanSymbol::value && made.size > 1
               ? ScanSymbol{0, 0, 0, ScanSymbol::unknown}
               : made;
  });
}

template <class Entry, size_t size, class Make>
void fill_table(std::array<Entry, size>& table, unsigned bits, const Codes& codes, Make make) {
  std::array<uint16_t, size> entries;
  std::array<Symbol, size> known;
  codes.fill(bits, entries.data());
  std::transform(entries.begin(), entries.end(), known.begin(), symbol_of);
  for (uint32_t i = 0; i < size; ++i) table[i] = make(i, bits, known.data());
}

bool AcTable::build(const HuffmanCode& code) {
  if (!codes.build(code)) return false;
  fill_table(pairs, pair_bits, codes, pair_at);
  fill_table(runs, run_bits, codes, run_at);
  return true;
}

}  // namespace fusionloader
