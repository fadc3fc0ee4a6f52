#pragma once
// Reads MCUs of a baseline scan: quickly the coefficients of those that are wanted, more quickly
// past the others.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/entry_index.hpp"
#include "jpeg/block.hpp"
#include "jpeg/entropy_data.hpp"
#include "jpeg/huffman.hpp"
#include "jpeg/scan.hpp"

namespace fusionloader {

constexpr int most_blocks = 6;  // of an MCU, in the layouts that are decoded here

class McuReader {
 public:
  McuReader();

  // False for a scan that libjpeg has to judge; if not `strict`, its data may be cut off or go over
  // into something else. `scan`'s data and the index must stay valid.
  bool start(const BaselineScan& scan, EntryIndex index = {}, bool strict = true);
  // Goes through all of a started scan, `mcus` of them, for its index. False where anything at all
  // is not as an encoder writes it: whoever jumps would not notice.
  bool record(size_t mcus, std::vector<ScanEntry>& entries);

  // Goes to an MCU ahead, or the next. What is read afterwards is what libjpeg would read if
  // regular() says so then.
  bool go_to(size_t mcu);
  // Its blocks in order of coding; they must be zero.
  void read(Block* blocks);
  // Whether everything read since the last go_to() was as an encoder writes it: known codes, values
  // in range, no block too long, the data not at its end.
  bool regular() const;

  void release_large_buffers() { data_.release_large_buffers(); }

 private:
  struct Part {
    int blocks;
    const DcTable* dc;
    const AcTable* ac;
    int predictor;
  };

  bool enter(size_t segment);
  bool enter_at(size_t entry);
  void skip();
  void read_mcu(Block* blocks);
  void skip_mcu();
  void read_with_quick_shifts(Block* blocks);
  void skip_with_quick_shifts();

  const bool quick_shifts_;
  EntropyData data_;
  TableCache<DcTable> dc_tables_;
  TableCache<AcTable> ac_tables_;
  std::array<Part, 3> parts_{};
  int part_count_ = 0;
  EntryIndex index_;
  size_t interval_ = 0;                   // 0: all in one segment
  size_t segment_ = 0, segment_end_ = 0;  // the latter in bits
  size_t next_mcu_ = 0;
  BitReader bits_;
  uint32_t irregular_ = 0;
};

}  // namespace fusionloader
