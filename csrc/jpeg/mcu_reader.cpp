#include "jpeg/mcu_reader.hpp"

#include <algorithm>

#include "simd/inline.hpp"

#if defined(__x86_64__)
#define FUSIONLOADER_BMI2 __attribute__((target("bmi,bmi2")))
#else
#define FUSIONLOADER_BMI2
#endif

namespace fusionloader {
namespace {

constexpr CodingOrder coding_order;
constexpr unsigned last_place = 63;

// A value of `size` bits at the upper end of `ahead`: those that begin with 0 are negative. Without
// a branch, which could not be predicted.
FUSIONLOADER_INLINE int value_of(uint64_t ahead, unsigned size) {
  const int value = static_cast<int>(ahead >> 1 >> (63 - size));
  const int negative = static_cast<int>(static_cast<int64_t>(~ahead) >> 63);
  return value + (negative & (1 - (1 << size)));
}

FUSIONLOADER_INLINE uint8_t field(uint64_t entry, unsigned number) {
  return static_cast<uint8_t>(entry >> (8 * number));
}

FUSIONLOADER_INLINE uint8_t place(unsigned at) {
  return coding_order.places[static_cast<uint8_t>(at)];
}

FUSIONLOADER_INLINE void store(Block& block, unsigned at, int value) {
  block.coefficients.data()[place(at)] = static_cast<int16_t>(value);
}

// What codes that the tables do not hold come to. By value, and the reader too: what a call can
// change does not stay in registers.
struct Rare {
  BitReader bits;
  unsigned symbol;
  bool known;  // the symbol is that of no zeros and no value otherwise
};

[[gnu::noinline]] Rare rare_symbol(BitReader bits, const Codes& codes) {
  bits.refill();
  unsigned length;
  const int symbol = codes.symbol(bits.peek(16), length);
  if (symbol < 0) return {bits, 0, false};
  bits.drop(length);
  bits.refill();
  return {bits, static_cast<unsigned>(symbol), true};
}

FUSIONLOADER_INLINE int dc_difference(BitReader& bits, const DcTable& table, uint32_t& irregular) {
  bits.refill();
  const uint16_t entry = table.sizes[bits.peek(DcTable::bits)];
  unsigned size;
  if (entry) {
    size = entry & 0xFF;
    bits.drop(entry >> 8);
  } else {
    const Rare rare = rare_symbol(bits, table.codes);
    bits = rare.bits;
    size = rare.symbol;
    irregular |= !rare.known;
  }
  const int value = value_of(bits.ahead(0), size);
  bits.drop(size);
  return value;
}

// One coefficient, whose value goes into `block` if there is one.
FUSIONLOADER_INLINE void rare_coefficient(BitReader& bits, const Codes& codes, unsigned& at,
                                          Block* block, uint32_t& irregular) {
  const Rare rare = rare_symbol(bits, codes);
  bits = rare.bits;
  irregular |= !rare.known;
  const unsigned size = rare.symbol & 15, zeros = rare.symbol >> 4;
  at += size || zeros == 15 ? zeros + 1 : end_of_block;
  if (block) store(*block, at, value_of(bits.ahead(0), size));
  bits.drop(size);
}

// Goes on by a pair of coefficients; a refill is enough for two.
FUSIONLOADER_INLINE void read_pair(BitReader& bits, const AcTable& table, unsigned& at,
                                   Block& block, uint32_t& irregular) {
  const uint64_t pair = table.pairs[bits.peek(AcTable::pair_bits)];
  const unsigned length = field(pair, 0), last_size = field(pair, 5);
  if (at + field(pair, 3) < last_place) {
    const uint64_t ahead = bits.ahead(length - last_size);
    bits.drop(length);
    store(block, at + field(pair, 2), static_cast<int16_t>(pair >> 48));
    at += field(pair, 4);
    store(block, at, value_of(ahead, last_size));
  } else if (length) {
    bits.drop(field(pair, 1));
    at += field(pair, 2);
    store(block, at, static_cast<int16_t>(pair >> 48));
  } else {
    rare_coefficient(bits, table.codes, at, &block, irregular);
  }
}

FUSIONLOADER_INLINE void read_ac(BitReader& bits, const AcTable& table, Block& block,
                                 uint32_t& irregular) {
  unsigned at = 0;
  do {
    bits.refill();
    read_pair(bits, table, at, block, irregular);
    if (at >= last_place) break;
    read_pair(bits, table, at, block, irregular);
  } while (at < last_place);
  irregular |= at & overlong;
}

FUSIONLOADER_INLINE void skip_run(BitReader& bits, const AcTable& table, unsigned& at,
                                  uint32_t& irregular) {
  const uint32_t run = table.runs[bits.peek(AcTable::run_bits)];
  if (at + field(run, 1) < last_place) {
    bits.drop(field(run, 0));
    at += field(run, 2);
    return;
  }
  const uint64_t pair = table.pairs[bits.peek(AcTable::pair_bits)];
  if (field(pair, 0)) {
    bits.drop(field(pair, 1));
    at += field(pair, 2);
  } else {
    rare_coefficient(bits, table.codes, at, nullptr, irregular);
  }
}

FUSIONLOADER_INLINE void skip_ac(BitReader& bits, const AcTable& table, uint32_t& irregular) {
  unsigned at = 0;
  do {
    bits.refill();
    skip_run(bits, table, at, irregular);
    if (at >= last_place) break;
    skip_run(bits, table, at, irregular);
  } while (at < last_place);
  irregular |= at & overlong;
}

// Zero if `value` fits 15 bits, far more than any encoder uses.
FUSIONLOADER_INLINE uint32_t beyond_15_bits(int value) {
  return (static_cast<uint32_t>(value) + 16384) >> 15;
}

// Shifts by a variable distance in one instruction.
bool have_quick_shifts() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

}  // namespace

McuReader::McuReader() : quick_shifts_(have_quick_shifts()) {}

bool McuReader::start(const BaselineScan& scan, EntryIndex index, bool strict) {
  index_ = index;
  part_count_ = scan.count;
  int blocks = 0;
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const ScanComponent& component = scan.components[i];
    Part& part = parts_[i];
    part = {component.h * component.v, dc_tables_.find(component.dc), ac_tables_.find(component.ac),
            0};
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
