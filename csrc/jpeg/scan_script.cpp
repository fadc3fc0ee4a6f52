#include "jpeg/scan_script.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "jpeg/block.hpp"
#include "jpeg/huffman.hpp"

namespace fusionloader {
namespace {

constexpr uint8_t baseline_frame = 0xC0, extended_frame = 0xC1, progressive_frame = 0xC2;
constexpr uint8_t huffman_tables = 0xC4, quantisers = 0xDB, restart_interval = 0xDD;
constexpr uint8_t first_restart = 0xD0, last_restart = 0xD7;
constexpr uint8_t begin_of_image = 0xD8, end_of_image = 0xD9, begin_of_scan = 0xDA;
constexpr uint8_t first_application = 0xE0, last_application = 0xEF, comment = 0xFE;

constexpr int block_side = 8;
constexpr int longest_side = 65500;  // libjpeg's
constexpr int most_blocks_of_mcu = 10;
constexpr int largest_factor = 4, largest_low = 13, last_coefficient_of_all = 63;
// Encoders write about ten. More are libjpeg's, so that a small file takes no long time here.
constexpr size_t most_scans = 200;

int word(const uint8_t* at) { return at[0] << 8 | at[1]; }
int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

bool is_restart(uint8_t marker) { return marker >= first_restart && marker <= last_restart; }

// The place in a table of 64, row by row, of what is coded at a place.
struct Natural {
  std::array<uint8_t, 64> places{};

  constexpr Natural() {
    const CodingOrder order;
    for (size_t row = 0; row < 8; ++row)
      for (size_t column = 0; column < 8; ++column)
        for (size_t at = 0; at < 64; ++at)
          if (order.places[at] == coefficient_place(row, column))
            places[at] = static_cast<uint8_t>(8 * row + column);
  }
};

constexpr Natural natural;

// The first place at or behind `at` of 0xFF without a stuffed 0 behind it, which is most of what
// there is between markers; the last byte where there is none. Compilers use vectors here.
size_t find_unstuffed(ByteView rest, size_t at) {
  constexpr size_t block = 256;
  const uint8_t* bytes = rest.data;
  for (; at + block < rest.size; at += block) {
    uint8_t found = 0;
    for (size_t i = at; i < at + block; ++i)
      found = static_cast<uint8_t>(found | ((bytes[i] == 0xFF) & (bytes[i + 1] != 0)));
    if (found) break;
  }
  while (at + 1 < rest.size && !(bytes[at] == 0xFF && bytes[at + 1] != 0)) ++at;
  return at;
}

// The entropy-coded data at the beginning of `rest`: up to the first marker that is no restart
// marker. False if there is none, or data that encoders do not write.
bool find_end(ByteView rest, size_t& end) {
  for (size_t at = 0; at < rest.size;) {
    at = end = find_unstuffed(rest, at);
    while (at < rest.size && rest.data[at] == 0xFF) ++at;
    if (at == rest.size || rest.data[end] != 0xFF) return false;
    const uint8_t code = rest.data[at++];
    if (code == 0) return false;  // filled and stuffed
    if (!is_restart(code)) return true;
  }
  return false;
}

}  // namespace

// In force at a place of the file.
struct ScanScript::Tables {
  struct Code {
    HuffmanCode code;
    bool defined = false;
    bool kept = false;  // among the script's codes
    size_t place = 0;   // there
  };
  std::array<std::array<Code, 4>, 2> codes;  // of DC, AC
  std::array<std::array<uint16_t, 64>, 4> quantisers;
  std::array<bool, 4> quantised{};
  std::array<uint8_t, 3> ids{}, quantiser_slots{};
  std::array<bool, 3> seen{};  // components that a scan had
  int restart_interval = 0;
  bool framed = false;

  bool read_codes(ByteView body);
  bool read_quantisers(ByteView body);
  bool read_restart_interval(ByteView body);
};

bool ScanScript::Tables::read_codes(ByteView body) {
  while (body.size > 0) {
    if (body.size < 17) return false;
    const uint8_t slot = body.data[0];
    if ((slot & 0xEF) > 3) return false;
    Code& to = codes[slot >> 4][slot & 3];
    to = {};
    size_t symbols = 0;
    for (size_t length = 1; length <= 16; ++length)
      symbols += to.code.counts[length] = body.data[length];
    body = {body.data + 17, body.size - 17};
    if (symbols > to.code.symbols.size() || symbols > body.size) return false;
    std::copy_n(body.data, symbols, to.code.symbols.begin());
    body = {body.data + symbols, body.size - symbols};
    to.defined = true;
  }
  return true;
}

bool ScanScript::Tables::read_quantisers(ByteView body) {
  while (body.size > 0) {
    const size_t slot = body.data[0] & 15, bytes = size_t{1} + (body.data[0] >> 4);
    if (slot > 3 || bytes > 2 || body.size < 1 + 64 * bytes) return false;
    const uint8_t* from = body.data + 1;
    for (size_t at = 0; at < 64; ++at, from += bytes)
      quantisers[slot][natural.places[at]] =
          static_cast<uint16_t>(bytes == 2 ? word(from) : from[0]);
    quantised[slot] = true;
    body = {body.data + 1 + 64 * bytes, body.size - 1 - 64 * bytes};
  }
  return true;
}

bool ScanScript::Tables::read_restart_interval(ByteView body) {
  if (body.size != 2) return false;
  restart_interval = word(body.data);
  return true;
}

bool ScanScript::read(ByteView file) {
  frame = {};
  scans.clear();
  codes.clear();
  Tables tables;
  if (file.size < 2 || file.data[0] != 0xFF || file.data[1] != begin_of_image) return false;
  for (size_t at = 2; at < file.size;) {
    if (file.data[at] != 0xFF) return false;
    while (at < file.size && file.data[at] == 0xFF) ++at;
    if (at == file.size) return false;
    const uint8_t marker = file.data[at++];
    if (marker == end_of_image)
      return !scans.empty() && std::all_of(tables.seen.begin(), tables.seen.begin() + frame.count,
                                           [](bool seen) { return seen; });
    if (file.size - at < 2) return false;
    const auto length = static_cast<size_t>(word(file.data + at));
    if (length < 2 || length > file.size - at) return false;
    if (!read_segment(marker, {file.data + at + 2, length - 2}, tables)) return false;
    at += length;
    if (marker != begin_of_scan) continue;
    const ByteView rest{file.data + at, file.size - at};
    size_t end;
    if (!find_end(rest, end)) return false;
    scans.back().data = {rest.data, end};
    at += end;
  }
  return false;
}

bool ScanScript::read_segment(uint8_t marker, ByteView body, Tables& tables) {
  switch (marker) {
    case progressive_frame:
    case baseline_frame:
    case extended_frame:
      progressive = marker == progressive_frame;
      return read_frame(body, tables);
    case huffman_tables:
      return tables.read_codes(body);
    case quantisers:
      return tables.read_quantisers(body);
    case restart_interval:
      return tables.read_restart_interval(body);
    case begin_of_scan:
      return read_scan(body, tables);
    default:
      return marker == comment || (marker >= first_application && marker <= last_application);
  }
}

bool ScanScript::read_frame(ByteView body, Tables& tables) {
  if (tables.framed || body.size < 6 || body.data[0] != 8) return false;
  tables.framed = true;
  frame.height = word(body.data + 1);
  frame.width = word(body.data + 3);
  frame.count = body.data[5];
  if (frame.height < 1 || frame.height > longest_side || frame.width < 1 ||
      frame.width > longest_side || (frame.count != 1 && frame.count != 3) ||
      body.size != 6 + 3 * static_cast<size_t>(frame.count))
    return false;
  int most_h = 1, most_v = 1;
  for (size_t i = 0; i < static_cast<size_t>(frame.count); ++i) {
    const uint8_t* from = body.data + 6 + 3 * i;
    FrameComponent& component = frame.components[i];
    // A component by itself has one block in an MCU, whatever its factors say.
    component.h = from[1] >> 4;
    component.v = from[1] & 15;
    if (component.h < 1 || component.h > largest_factor || component.v < 1 ||
        component.v > largest_factor)
      return false;
    most_h = std::max(most_h, component.h);
    most_v = std::max(most_v, component.v);
    tables.ids[i] = from[0];
    tables.quantiser_slots[i] = from[2];
    if (std::find(tables.ids.begin(), tables.ids.begin() + i, from[0]) != tables.ids.begin() + i)
      return false;
  }
  if (frame.count == 1) frame.components[0].h = frame.components[0].v = 1;
  // libjpeg makes planes larger by whole numbers only.
  return frame.count == 1 ||
         std::all_of(frame.components.begin(), frame.components.end(), [&](FrameComponent& each) {
           return most_h % each.h == 0 && most_v % each.v == 0;
         });
}

bool ScanScript::read_scan(ByteView body, Tables& tables) {
  if (!tables.framed || scans.size() == most_scans || body.size < 1) return false;
  ScriptedScan scan{};
  scan.count = body.data[0];
  if (scan.count < 1 || scan.count > frame.count ||
      body.size != 4 + 2 * static_cast<size_t>(scan.count))
    return false;
  std::array<uint8_t, 3> slots{};
  size_t next = 0;
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const uint8_t* from = body.data + 1 + 2 * i;
    while (next < static_cast<size_t>(frame.count) && tables.ids[next] != from[0]) ++next;
    if (next == static_cast<size_t>(frame.count)) return false;
    scan.components[i] = static_cast<uint8_t>(next++);
    slots[i] = from[1];
  }
  const uint8_t* parameters = body.data + body.size - 3;
  scan.first = parameters[0];
  scan.last = parameters[1];
  scan.high = parameters[2] >> 4;
  scan.low = parameters[2] & 15;
  scan.restart_interval = tables.restart_interval;
  if (!may_follow(scan) || !find_codes(scan, slots.data(), tables)) return false;
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const size_t component = scan.components[i], slot = tables.quantiser_slots[component];
    if (tables.seen[component]) continue;
    // Those in force at its first scan are a component's for good.
    if (slot > 3 || !tables.quantised[slot]) return false;
    frame.components[component].quantisers = tables.quantisers[slot];
    tables.seen[component] = true;
  }
  scans.push_back(scan);
  return true;
}

// Whether libjpeg takes a scan behind those that there are.
bool ScanScript::may_follow(const ScriptedScan& scan) const {
  int blocks = 0;
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const FrameComponent& component = frame.components[scan.components[i]];
    blocks += component.h * component.v;
  }
  if (scan.count > 1 && blocks > most_blocks_of_mcu) return false;
  if (!progressive) {
    const bool whole = !scans.empty() && scans[0].count == frame.count;
    return !whole && scan.first == 0 && scan.last == last_coefficient_of_all && scan.high == 0 &&
           scan.low == 0;
  }
  const bool band = scan.first == 0 ? scan.last == 0
                                    : scan.first <= scan.last &&
                                          scan.last <= last_coefficient_of_all && scan.count == 1;
  return band && scan.low <= largest_low && (scan.high == 0 || scan.high == scan.low + 1);
}

// Finds the codes that a scan uses, and whether libjpeg takes them.
bool ScanScript::find_codes(ScriptedScan& scan, const uint8_t* slots, Tables& tables) {
  const bool with_dc = scan.first == 0 && scan.high == 0, with_ac = scan.last > 0;
  for (const bool ac : {false, true}) {
    if (!(ac ? with_ac : with_dc)) continue;
    for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
      const size_t slot = ac ? slots[i] & 15 : slots[i] >> 4;
      if (slot > 3 || !tables.codes[ac][slot].defined) return false;
      Tables::Code& found = tables.codes[ac][slot];
      if (!found.kept) {
        if (!(ac ? is_ac_code(found.code) : is_dc_code(found.code))) return false;
        found.kept = true;
        found.place = codes.size();
        codes.push_back(found.code);
      }
      (ac ? scan.ac : scan.dc)[i] = found.place;
    }
  }
  return !progressive || !with_dc || sums_fit(scan);
}

// Whether DC differences of the greatest length in all blocks between two restarts fit 31 bits.
bool ScanScript::sums_fit(const ScriptedScan& scan) const {
  int most_h = 1, most_v = 1;
  for (const FrameComponent& component : frame.components) {
    most_h = std::max(most_h, component.h);
    most_v = std::max(most_v, component.v);
  }
  // More than there are, where a component by itself is not padded to whole MCUs.
  int64_t mcus =
      divide_up(frame.width, block_side * most_h) * divide_up(frame.height, block_side * most_v);
  for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
    const FrameComponent& component = frame.components[scan.components[i]];
    const HuffmanCode& code = codes[scan.dc[i]];
    const uint8_t longest = *std::max_element(code.symbols.begin(), code.symbols.end());
    int64_t blocks = mcus * component.h * component.v;
    if (scan.restart_interval)
      blocks = std::min<int64_t>(blocks, int64_t{scan.restart_interval} *
                                             (scan.count == 1 ? 1 : component.h * component.v));
    if (blocks * ((int64_t{1} << longest) - 1) > INT_MAX) return false;
  }
  return true;
}

bool ScanScript::is_complete() const {
  constexpr int none = -1;
  std::array<std::array<int, 64>, 3> missing;
  for (std::array<int, 64>& bits : missing) bits.fill(none);
  for (const ScriptedScan& scan : scans)
    for (size_t i = 0; i < static_cast<size_t>(scan.count); ++i) {
      std::array<int, 64>& bits = missing[scan.components[i]];
      if (scan.first > 0 && bits[0] == none) return false;
      for (auto at = static_cast<size_t>(scan.first); at <= static_cast<size_t>(scan.last); ++at) {
        if (bits[at] != (scan.high ? scan.high : none)) return false;
        bits[at] = scan.low;
      }
    }
  return std::all_of(missing.begin(), missing.begin() + frame.count, [](const auto& bits) {
    return std::all_of(bits.begin(), bits.end(), [](int left) { return left == 0; });
  });
}

}  // namespace fusionloader
