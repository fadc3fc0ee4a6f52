#pragma once
// The kinds of scans that add bits to coefficients: how each reads MCUs that lie side by side.
//
// Outside the window a block's values are left out. What is looked at there are the symbols of a
// scan that comes first, and of a refinement also how many bits refine the coefficients that are
// not zero; both tell which coefficients are not zero from then on.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "jpeg/coded_values.hpp"
#include "jpeg/coefficient_sets.hpp"
#include "jpeg/coefficients.hpp"
#include "jpeg/scan_script.hpp"

namespace fusionloader {

// Where reading stands between two restarts.
struct ScanCursor {
  BitReader bits;
  std::array<int, 3> predictors{};
  size_t run = 0;  // of blocks without new coefficients, from the next one on
  uint32_t irregular = 0;
};

struct OpenScan {
  const ScriptedScan& scan;
  const std::array<ScanTable, 3>&dc, &ac;
  std::array<CoefficientPlane, 3>& planes;

  // A component by itself has one block in an MCU.
  size_t h(const CoefficientPlane& plane) const { return scan.count > 1 ? plane.h : 1; }
  size_t v(const CoefficientPlane& plane) const { return scan.count > 1 ? plane.v : 1; }
};

// MCUs of a row, all of them in columns and rows of the window or all outside.
struct Span {
  size_t row, column, count;
};

namespace parts {

inline constexpr CodingOrder coding_order;

// No value has more bits once it is shifted: nor has one of a baseline scan.
constexpr int most_bits = 14;

FUSIONLOADER_INLINE int16_t shifted(int value, int low) {
  return static_cast<int16_t>(static_cast<uint32_t>(value) << low);
}

// What the table does not hold; the code has been read.
FUSIONLOADER_INLINE unsigned next_rare(ScanCursor& at, const ScanTable& table) {
  const Rare rare = rare_symbol(at.bits, table.codes);
  at.bits = rare.bits;
  at.irregular |= !rare.known;
  return rare.symbol;
}

// Behind a refill.
FUSIONLOADER_INLINE int next_value(ScanCursor& at, const ScanSymbol& symbol) {
  const uint64_t ahead = at.bits.ahead(uint64_t{symbol.length} - symbol.size);
  at.bits.drop(symbol.length);
  return value_of(ahead, 63u - symbol.size);
}

// The blocks that a symbol ends: the one at hand and those behind it.
FUSIONLOADER_INLINE size_t next_run(ScanCursor& at, const ScanSymbol& symbol) {
  at.bits.drop(symbol.length);
  at.bits.refill();
  size_t run = 1;
  if (symbol.size > 0) run = (size_t{1} << symbol.size) + at.bits.peek(symbol.size);
  at.bits.drop(symbol.size);
  return run;
}

FUSIONLOADER_INLINE int next_dc(ScanCursor& at, const OpenScan& open, size_t i) {
  at.bits.refill();
  ScanSymbol symbol = open.dc[i].entries[at.bits.peek(ScanTable::bits)];
  if (symbol.kind == ScanSymbol::unknown) {
    const auto size = static_cast<uint8_t>(next_rare(at, open.dc[i]));
    symbol = {size, size, 0, ScanSymbol::value};
  }
  const int value = at.predictors[i] + next_value(at, symbol);
  at.predictors[i] = value;
  const int low = open.scan.low;
  at.irregular |=
      (static_cast<uint32_t>(value) + (1u << most_bits >> low)) >> (most_bits + 1 - low);
  return value;
}

// The coefficients of a block from `place` on, up to the scan's last one.
template <bool inside, bool with_runs>
FUSIONLOADER_INLINE void read_ac(ScanCursor& at, const OpenScan& open, size_t i, unsigned place,
                                 uint64_t& nonzero, Block* block) {
  const uint8_t* const places = coding_order.places.data();
  const auto last = static_cast<unsigned>(open.scan.last);
  uint64_t found = 0;
  for (; place <= last; ++place) {
    at.bits.refill();
    ScanSymbol symbol = open.ac[i].entries[at.bits.peek(ScanTable::bits)];
    if (symbol.kind >= ScanSymbol::run) {
      if (symbol.kind == ScanSymbol::unknown) symbol = ac_symbol(next_rare(at, open.ac[i]), 0);
      if (symbol.kind == ScanSymbol::run) {
        if (!with_runs) at.irregular |= symbol.size;
        const size_t run = next_run(at, symbol);
        if (with_runs) at.run = run;
        place = last + 1;
        break;
      }
    }
    place += symbol.zeros;
    const int value = next_value(at, symbol);
    if (symbol.kind == ScanSymbol::zeros_only) continue;
    if (inside) block->coefficients.data()[places[place]] = shifted(value, open.scan.low);
    found |= uint64_t{1} << (place & 63);
  }
  at.irregular |= place > last + 1;
  nonzero |= found;
}

// Bits that refine coefficients of a block, from the highest on in order of coding.
struct Refinements {
  uint64_t bits = 0;
  unsigned count = 0;

  // As many as there are in a set, behind a refill.
  FUSIONLOADER_INLINE void read(ScanCursor& at, uint64_t set) {
    unsigned left = size_of(set);
    if (left > 39) {
      at.bits.refill();
      take(at, 32);
      at.bits.refill();
      left -= 32;
    }
    take(at, left);
  }

 private:
  FUSIONLOADER_INLINE void take(ScanCursor& at, unsigned more) {
    bits |= (at.bits.ahead(0) & ~(~uint64_t{0} >> more)) >> count;
    at.bits.drop(more);
    count += more;
  }
};

FUSIONLOADER_INLINE int16_t& value_at(Block& block, uint64_t member) {
  return block.coefficients[coding_order.places[static_cast<size_t>(__builtin_ctzll(member))]];
}

// Adds `step` to the magnitudes of a set of coefficients.
FUSIONLOADER_INLINE void grow(Block& block, uint64_t set, int step) {
  for (; set; set &= set - 1) {
    int16_t& value = value_at(block, set);
    const int sign = value >> 15;
    value = static_cast<int16_t>(value + ((step ^ sign) - sign));
  }
}

// Symbols of a block, each behind the bits that refine what it steps over; gives what is left of
// the coefficients `band` behind the last of them. A new coefficient is +-`step`.
//
// The time goes into what has to be known before the next symbol can be looked up. So a refill
// waits for nothing but the symbol before; it leaves 17 bits behind the refinements.
template <bool inside, class Sets>
FUSIONLOADER_INLINE uint64_t read_new(ScanCursor& at, const ScanTable& table, uint64_t band,
                                      int step, uint64_t& nonzero, Block* block,
                                      Refinements& refinements) {
  const uint64_t known = nonzero & band, free = band & ~known;
  uint64_t left = band, added = 0;
  at.bits.refill();
  while (left) {
    ScanSymbol symbol = table.entries[at.bits.peek(ScanTable::bits)];
    if (symbol.kind >= ScanSymbol::run) {
      if (symbol.kind == ScanSymbol::unknown) {
        symbol = ac_symbol(next_rare(at, table), 0);
        at.irregular |= symbol.kind == ScanSymbol::value && symbol.size > 1;
      }
      if (symbol.kind == ScanSymbol::run) {
        at.run = next_run(at, symbol);
        break;
      }
    }
    const uint64_t place = Sets::member(free & left, symbol.zeros & 63);
    const bool positive = static_cast<int64_t>(at.bits.ahead(symbol.length - 1u)) < 0;
    at.bits.drop(symbol.length);
    at.bits.refill();
    refinements.read(at, left & known & (place - 1));
    if (!place) {
      // Nothing is left for it: all of the band is behind it.
      at.irregular |= 1;
      return 0;
    }
    left &= ~(place ^ (place - 1));
    if (symbol.kind == ScanSymbol::zeros_only) continue;
    added |= place;
    if (inside) value_at(*block, place) = static_cast<int16_t>(positive ? step : -step);
  }
  nonzero |= added;
  return left & known;
}

}  // namespace parts

// A component's blocks in the MCUs of a span, one MCU after the other.
struct SpanBlocks {
  size_t h, v, stride;
  Block* next;  // none outside the window

  SpanBlocks(const OpenScan& open, size_t i, Span span, bool inside) {
    CoefficientPlane& plane = open.planes[open.scan.components[i]];
    h = open.h(plane);
    v = open.v(plane);
    stride = plane.columns();
    next = inside ? plane.block(span.row * v, span.column * h) : nullptr;
  }
};

struct DcFirst {
  template <bool inside>
  static FUSIONLOADER_INLINE void read(ScanCursor& at, const OpenScan& open, Span span) {
    const auto count = static_cast<size_t>(open.scan.count);
    SpanBlocks blocks[] = {{open, 0, span, inside},
                           {open, count > 1 ? 1u : 0u, span, inside},
                           {open, count > 2 ? 2u : 0u, span, inside}};
    for (size_t mcu = 0; mcu < span.count; ++mcu)
      for (size_t i = 0; i < count; ++i) {
        SpanBlocks& of = blocks[i];
        for (size_t y = 0; y < of.v; ++y)
          for (size_t x = 0; x < of.h; ++x) {
            const int value = parts::next_dc(at, open, i);
            if (inside)
              of.next[y * of.stride + x].coefficients[0] = parts::shifted(value, open.scan.low);
          }
        if (inside) of.next += of.h;
      }
  }
};

struct DcRefinement {
  template <bool inside>
  static FUSIONLOADER_INLINE void read(ScanCursor& at, const OpenScan& open, Span span) {
    const auto count = static_cast<size_t>(open.scan.count);
    SpanBlocks blocks[] = {{open, 0, span, inside},
                           {open, count > 1 ? 1u : 0u, span, inside},
                           {open, count > 2 ? 2u : 0u, span, inside}};
    if (!inside) {
      size_t in_mcu = 0;
      for (size_t i = 0; i < count; ++i) in_mcu += blocks[i].h * blocks[i].v;
      at.bits.skip(in_mcu * span.count);
      return;
    }
    for (size_t mcu = 0; mcu < span.count; ++mcu) {
      at.bits.refill();
      for (size_t i = 0; i < count; ++i) {
        SpanBlocks& of = blocks[i];
        for (size_t y = 0; y < of.v; ++y)
          for (size_t x = 0; x < of.h; ++x) {
            int16_t& value = of.next[y * of.stride + x].coefficients[0];
            const auto bit = static_cast<int>(at.bits.peek(1));
            value = static_cast<int16_t>(value | parts::shifted(bit, open.scan.low));
            at.bits.drop(1);
          }
        of.next += of.h;
      }
    }
  }
};

struct AcFirst {
  template <bool inside>
  static FUSIONLOADER_INLINE void read(ScanCursor& at, const OpenScan& open, Span span) {
    CoefficientPlane& plane = open.planes[open.scan.components[0]];
    uint64_t* const nonzero = plane.nonzero_of(span.row, span.column);
    Block* const blocks = inside ? plane.block(span.row, span.column) : nullptr;
    const auto first = static_cast<unsigned>(open.scan.first);
    for (size_t i = 0; i < span.count; ++i) {
      if (at.run == 0)
        parts::read_ac<inside, true>(at, open, 0, first, nonzero[i], inside ? blocks + i : nullptr);
      if (at.run == 0) continue;
      const size_t ended = std::min(at.run, span.count - i);
      at.run -= ended;
      i += ended - 1;
    }
  }
};

template <class Sets>
struct AcRefinement {
  template <bool inside>
  static FUSIONLOADER_INLINE void read(ScanCursor& at, const OpenScan& open, Span span) {
    CoefficientPlane& plane = open.planes[open.scan.components[0]];
    uint64_t* const nonzero = plane.nonzero_of(span.row, span.column);
    Block* const blocks = inside ? plane.block(span.row, span.column) : nullptr;
    const int step = 1 << open.scan.low;
    const uint64_t band = ~uint64_t{0} >> (63 - open.scan.last) & ~uint64_t{0} << open.scan.first;
    for (size_t i = 0; i < span.count; ++i) {
      Block* const block = inside ? blocks + i : nullptr;
      const uint64_t known = nonzero[i] & band;
      uint64_t left = known;
      parts::Refinements refinements;
      if (at.run == 0)
        left = parts::read_new<inside, Sets>(at, open.ac[0], band, step, nonzero[i], block,
                                             refinements);
      if (at.run > 0) {
        at.bits.refill();
        refinements.read(at, left);
        --at.run;
      }
      if (inside) parts::grow(*block, Sets::subset(known, reversed(refinements.bits)), step);
    }
  }
};

// All bits at once: a baseline scan that does not hold all components.
struct Sequential {
  template <bool inside>
  static FUSIONLOADER_INLINE void read(ScanCursor& at, const OpenScan& open, Span span) {
    for (size_t mcu = span.column; mcu < span.column + span.count; ++mcu)
      for (size_t i = 0; i < static_cast<size_t>(open.scan.count); ++i) {
        CoefficientPlane& plane = open.planes[open.scan.components[i]];
        const size_t h = open.h(plane), v = open.v(plane);
        for (size_t y = span.row * v; y < (span.row + 1) * v; ++y)
          for (size_t x = mcu * h; x < (mcu + 1) * h; ++x) {
            Block* const block = inside ? plane.block(y, x) : nullptr;
            const int value = parts::next_dc(at, open, i);
            if (inside) block->coefficients[0] = static_cast<int16_t>(value);
            parts::read_ac<inside, false>(at, open, i, 1, *plane.nonzero_of(y, x), block);
          }
      }
  }
};

}  // namespace fusionloader
