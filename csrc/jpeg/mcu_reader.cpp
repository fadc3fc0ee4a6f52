#include "jpeg/mcu_reader.hpp"

#include <algorithm>

#include "jpeg/coded_values.hpp"

namespace fusionloader {
namespace {

constexpr CodingOrder coding_order;

FUSIONLOADER_INLINE void store(Block& block, const uint8_t* place, int value) {
  block.coefficients.data()[*place] = static_cast<int16_t>(value);
}

// Leaves 31 bits or more of a refill.
FUSIONLOADER_INLINE int dc_difference(BitReader& bits, const DcTable& table, uint32_t& irregular) {
  bits.refill();
  const unsigned entry = table.entries[bits.peek(DcTable::bits)];
  if (entry) {
    const unsigned size = entry >> 8, length = entry & 0xFF;
    const uint64_t ahead = bits.ahead(length - size);
    bits.drop(length);
    return value_of(ahead, 63 - size);
  }
  const Rare rare = rare_symbol(bits, table.codes);
  bits = rare.bits;
  irregular |= !rare.known;
  const int value = value_of(bits.ahead(0), 63 - rare.symbol);
  bits.drop(rare.symbol);
  bits.refill();
  return value;
}

// One coefficient, whose value goes into `block` if there is one. The tables can go on after it.
FUSIONLOADER_INLINE void rare_coefficient(BitReader& bits, const Codes& codes, size_t& at,
                                          Block* block, uint32_t& irregular) {
  const Rare rare = rare_symbol(bits, codes);
  bits = rare.bits;
  irregular |= !rare.known;
  const unsigned size = rare.symbol & 15, zeros = rare.symbol >> 4;
  at += size || zeros == 15 ? zeros + 1 : end_of_block;
  if (block) store(*block, &coding_order.places[at], value_of(bits.ahead(0), 63 - size));
  bits.drop(size);
  bits.refill();
}

// A refill is enough for two, and what a DC difference leaves of it for one.
FUSIONLOADER_INLINE const SymbolPair& read_pair(BitReader& bits, const AcTable& table,
                                                const uint8_t*& place, Block& block) {
  const SymbolPair& pair = table.pairs[bits.peek(AcTable::pair_bits)];
  const uint64_t ahead = bits.ahead(pair.last_value_at);
  bits.drop(pair.length);
  store(block, place + pair.first_advance, pair.first_value);
  place += pair.advance;
  store(block, place, value_of(ahead, pair.last_spare));
  return pair;
}

// The loop asks nothing but whether to go on: what has ended it is found out afterwards.
FUSIONLOADER_INLINE void read_ac(BitReader& bits, const AcTable& table, Block& block,
                                 uint32_t& irregular) {
  const uint8_t* const places = coding_order.places.data();
  const uint8_t* const last = places + last_coefficient;
  const uint8_t* place = places;
  for (;;) {
    const SymbolPair* pair = &read_pair(bits, table, place, block);
    while (place < last) {
      bits.refill();
      pair = &read_pair(bits, table, place, block);
      if (place >= last) break;
      pair = &read_pair(bits, table, place, block);
    }
    const uint8_t* const first = place - pair->advance + pair->first_advance;
    if (first == last && pair->first_length != pair->length) {
      // The second symbol is the next block's.
      bits.put_back(size_t{pair->length} - pair->first_length);
      return;
    }
    if (place < places + unknown_code) break;
    size_t at = static_cast<size_t>(place - places) - unknown_code;
    rare_coefficient(bits, table.codes, at, &block, irregular);
    place = places + at;
    if (place >= last) break;
  }
  irregular |= *place == too_far;
}

FUSIONLOADER_INLINE const SymbolRun& skip_run(BitReader& bits, const AcTable& table, size_t& at) {
  const SymbolRun& run = table.runs[bits.peek(AcTable::run_bits)];
  bits.drop(run.length);
  at += run.advance;
  return run;
}

FUSIONLOADER_INLINE void skip_ac(BitReader& bits, const AcTable& table, uint32_t& irregular) {
  size_t at = 0;
  for (;;) {
    const SymbolRun* run = &skip_run(bits, table, at);
    while (at < last_coefficient) {
      bits.refill();
      run = &skip_run(bits, table, at);
      if (at >= last_coefficient) break;
      run = &skip_run(bits, table, at);
    }
    const size_t before = at - run->advance;
    if (before + run->before_last >= last_coefficient) {
      // Not all of its symbols are this block's: one by one.
      bits.put_back(run->length);
      for (at = before; at < last_coefficient;) {
        const SymbolPair& pair = table.pairs[bits.peek(AcTable::pair_bits)];
        bits.drop(pair.first_length);
        at += pair.first_advance;
      }
      break;
    }
    if (at < unknown_code) break;
    at -= unknown_code;
    rare_coefficient(bits, table.codes, at, nullptr, irregular);
    if (at >= last_coefficient) break;
  }
  irregular |= coding_order.places[at] == too_far;
}

}  // namespace

McuReader::McuReader() : quick_shifts_(have_quick_shifts()) {}

bool McuReader::start(const BaselineScan& scan, EntryIndex index, bool strict) {
  index_ = index;
  part_count_ = scan.count;
  int blocks = 0;
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const FrameComponent& component = scan.components[i];
    Part& part = parts_[i];
    part = {component.h * component.v, dc_tables_.find(scan.codes[i].dc),
            ac_tables_.find(scan.codes[i].ac), 0};
    if (!part.dc || !part.ac) return false;
    blocks += part.blocks;
  }
  interval_ = static_cast<size_t>(scan.restart_interval);
  return blocks <= most_blocks && data_.split(scan.data, interval_ > 0, strict) && enter(0);
}

bool McuReader::enter(size_t segment) {
  if (segment >= data_.segments().size()) return false;
  const Segment& bounds = data_.segments()[segment];
  bits_ = data_.reader(bounds);
  segment_ = segment;
  segment_end_ = bounds.end * 8;
  next_mcu_ = segment * interval_;
  irregular_ = 0;
  for (Part& part : parts_) part.predictor = 0;
  return true;
}

// Segments are independent of each other as long as their markers are in order: libjpeg fills up
// what one lacks and leaves out what it has too much.
bool McuReader::go_to(size_t mcu) {
  const size_t segment = interval_ ? mcu / interval_ : 0;
  if (segment != segment_ && !enter(segment)) return false;
  // Of the same segment, if it lies ahead.
  const size_t entry = std::min(mcu / entry_step, index_.count);
  if (entry * entry_step > next_mcu_ && !enter_at(entry - 1)) return false;
  while (next_mcu_ < mcu) {
    // What goes on after the data's end would only take time.
    if (bits_.position() > segment_end_) return false;
    skip();
  }
  return true;
}

bool McuReader::enter_at(size_t entry) {
  const ScanEntry& at = index_.entries[entry];
  const Segment& bounds = data_.segments()[segment_];
  if (at.bit < bounds.begin * 8 || at.bit > segment_end_) return false;
  bits_ = data_.reader(bounds, at.bit);
  next_mcu_ = (entry + 1) * entry_step;
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].predictor = at.predictors[i];
  return true;
}

bool McuReader::record(size_t mcus, std::vector<ScanEntry>& entries) {
  entries.clear();
  index_ = {};
  if (data_.segments().back().end > UINT32_MAX / 8 || !enter(0)) return false;
  while (next_mcu_ < mcus) {
    const size_t segment_end = interval_ ? (segment_ + 1) * interval_ : mcus;
    const size_t stop = std::min({mcus, segment_end, (next_mcu_ / entry_step + 1) * entry_step});
    while (next_mcu_ < stop) {
      if (!regular()) return false;
      skip();
    }
    if (!regular()) return false;
    if (stop == mcus) break;
    if (stop == segment_end && !enter(segment_ + 1)) return false;
    if (stop % entry_step) continue;
    ScanEntry entry{static_cast<uint32_t>(bits_.position()), {}, 0};
    for (size_t i = 0; i < parts_.size(); ++i)
      entry.predictors[i] = static_cast<int16_t>(parts_[i].predictor);
    entries.push_back(entry);
  }
  return true;
}

bool McuReader::regular() const { return !irregular_ && bits_.position() <= segment_end_; }

void McuReader::read(Block* blocks) {
  if (quick_shifts_)
    read_with_quick_shifts(blocks);
  else
    read_mcu(blocks);
}

void McuReader::skip() {
  if (quick_shifts_)
    skip_with_quick_shifts();
  else
    skip_mcu();
}

FUSIONLOADER_INLINE void McuReader::read_mcu(Block* blocks) {
  // Local, so that they stay in registers.
  BitReader bits = bits_;
  uint32_t irregular = irregular_;
  for (int i = 0; i < part_count_; ++i) {
    Part& part = parts_[static_cast<size_t>(i)];
    int predictor = part.predictor;
    for (int count = part.blocks; count > 0; --count, ++blocks) {
      predictor += dc_difference(bits, *part.dc, irregular);
      irregular |= beyond_15_bits(predictor);
      blocks->coefficients[0] = static_cast<int16_t>(predictor);
      read_ac(bits, *part.ac, *blocks, irregular);
    }
    part.predictor = predictor;
  }
  irregular_ = irregular;
  bits_ = bits;
  ++next_mcu_;
}

FUSIONLOADER_INLINE void McuReader::skip_mcu() {
  BitReader bits = bits_;
  uint32_t irregular = irregular_;
  for (int i = 0; i < part_count_; ++i) {
    Part& part = parts_[static_cast<size_t>(i)];
    int predictor = part.predictor;
    for (int count = part.blocks; count > 0; --count) {
      predictor += dc_difference(bits, *part.dc, irregular);
      irregular |= beyond_15_bits(predictor);
      skip_ac(bits, *part.ac, irregular);
    }
    part.predictor = predictor;
  }
  irregular_ = irregular;
  bits_ = bits;
  ++next_mcu_;
}

FUSIONLOADER_BMI2 void McuReader::read_with_quick_shifts(Block* blocks) { read_mcu(blocks); }
FUSIONLOADER_BMI2 void McuReader::skip_with_quick_shifts() { skip_mcu(); }

}  // namespace fusionloader
