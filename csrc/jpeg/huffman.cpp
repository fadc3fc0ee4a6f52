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

struct Symbol {
  unsigned length = 0;  // of the code; 0: not known from these bits
  unsigned size = 0;    // of the value
  unsigned advance = 0;

  explicit Symbol(uint16_t entry) : length(entry >> 8), size(entry & 15) {
    const unsigned zeros = (entry & 0xFF) >> 4;
    advance = size || zeros == 15 ? zeros + 1 : end_of_block;
  }
};

uint64_t packed(const SymbolPair& pair) {
  return pair.length | static_cast<uint64_t>(pair.first_length) << 8 |
         static_cast<uint64_t>(pair.first_advance) << 16 |
         static_cast<uint64_t>(pair.before_last) << 24 | static_cast<uint64_t>(pair.advance) << 32 |
         static_cast<uint64_t>(pair.last_size) << 40 |
         static_cast<uint64_t>(static_cast<uint16_t>(pair.first_value)) << 48;
}

uint32_t packed(const SymbolRun& run) {
  return run.length | static_cast<uint32_t>(run.before_last) << 8 |
         static_cast<uint32_t>(run.advance) << 16;
}

uint8_t byte(unsigned value) { return static_cast<uint8_t>(value); }

// `known` is like Codes::fill of `bits` bits, which begin the value `next`.
SymbolPair pair_at(uint32_t next, unsigned bits, const uint16_t* known) {
  const uint32_t mask = (1u << bits) - 1;
  const Symbol first(known[next]);
  // No block has room for what cannot be looked up.
  if (!first.length) return {0, 0, 0, 255, 0, 0, 0};
  const unsigned first_end = first.length + first.size;
  if (first.advance != end_of_block && first_end < bits) {
    const Symbol last(known[next << first_end & mask]);
    if (last.length && first_end + last.length <= bits) {
      const uint32_t value_bits = next >> (bits - first_end) & ((1u << first.size) - 1);
      return {byte(first_end + last.length + last.size),
              byte(first_end),
              byte(first.advance),
              byte(first.advance),
              byte(first.advance + last.advance),
              byte(last.size),
              static_cast<int16_t>(value_of(value_bits, first.size))};
    }
  }
  return {byte(first_end),
          byte(first_end),
          byte(first.advance),
          0,
          byte(first.advance),
          byte(first.size),
          0};
}

// Two runs and what lies between them must not take more bits than a refill gives.
constexpr unsigned longest_run = 28;

SymbolRun run_at(uint32_t next, unsigned bits, const uint16_t* known) {
  const uint32_t mask = (1u << bits) - 1;
  const Symbol first(known[next]);
  if (!first.length) return {0, 255, 0};
  SymbolRun run{byte(first.length + first.size), 0, byte(first.advance)};
  while (run.advance < 64 && run.length < bits) {
    const Symbol last(known[next << run.length & mask]);
    if (!last.length || run.length + last.length > bits) break;
    const unsigned length = run.length + last.length + last.size;
    if (length > longest_run) break;
    run.before_last = run.advance;
    run.advance = byte(run.advance + last.advance);
    run.length = byte(length);
  }
  return run;
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

bool DcTable::build(const HuffmanCode& code) {
  // Symbols behind the last of the code may be anything: they are never met.
  size_t symbols = 0;
  for (unsigned length = 1; length <= 16; ++length) symbols += code.counts[length];
  const auto end = code.symbols.begin() + static_cast<ptrdiff_t>(std::min<size_t>(symbols, 256));
  const bool possible =
      std::all_of(code.symbols.begin(), end, [](uint8_t size) { return size <= longest_value; });
  if (!possible || !codes.build(code)) return false;
  codes.fill(bits, sizes.data());
  return true;
}

bool AcTable::build(const HuffmanCode& code) {
  if (!codes.build(code)) return false;
  std::array<uint16_t, 1 << run_bits> known;
  codes.fill(run_bits, known.data());
  for (uint32_t i = 0; i < runs.size(); ++i) runs[i] = packed(run_at(i, run_bits, known.data()));
  codes.fill(pair_bits, known.data());
  for (uint32_t i = 0; i < pairs.size(); ++i)
    pairs[i] = packed(pair_at(i, pair_bits, known.data()));
  return true;
}

}  // namespace fusionloader
