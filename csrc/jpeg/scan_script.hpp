#pragma once
// What the markers of a whole file say: its frame, its scans and the tables of each.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/scan.hpp"

namespace fusionloader {

struct ScriptedScan {
  int count;                          // of components
  std::array<uint8_t, 3> components;  // ascending
  // Places in ScanScript::codes; those that the scan does not use mean nothing.
  std::array<size_t, 3> dc, ac;
  int first, last;       // coefficients in order of coding: Ss and Se
  int high, low;         // Ah and Al: bits that are missing before it (0: all) and after it
  int restart_interval;  // in MCUs of the scan; 0: none
  ByteView data;         // up to the marker behind it
};

// Read from the file alone, without libjpeg.
//
// Why libjpeg never refuses a file that is read here, whatever its entropy-coded data: libjpeg only
// warns of damaged data, and fills up what is missing. It gives up a file for its markers and for
// what they say: segments and tables that are wrong, scans that cannot be, an image too large, a
// file without an end. All of those are looked at, with libjpeg's conditions or narrower ones. Nor
// do damaged data hide a marker: within a scan libjpeg reads on behind restart markers alone, and
// what it searches for afterwards is the next marker. One thing depends on the data: libjpeg
// refuses a sum of DC differences beyond 31 bits, which no table that is let through can reach.
class ScanScript {
 public:
  // False for a file that libjpeg may refuse, and for some that it does not: of other codings than
  // baseline and progressive, of 12 bits, with unusual markers. The file must stay valid.
  bool read(ByteView file);

  // Whether each coefficient's bits are there once, in an order that no decoder warns of.
  bool is_complete() const;

  Frame frame{};
  bool progressive = false;
  std::vector<ScriptedScan> scans;
  std::vector<HuffmanCode> codes;

 private:
  struct Tables;

  bool read_segment(uint8_t marker, ByteView body, Tables& tables);
  bool read_frame(ByteView body, Tables& tables);
  bool read_scan(ByteView body, Tables& tables);
  bool may_follow(const ScriptedScan& scan) const;
  bool find_codes(ScriptedScan& scan, const uint8_t* slots, Tables& tables);
  bool sums_fit(const ScriptedScan& scan) const;
};

}  // namespace fusionloader
