#pragma once
// An image as its header describes it, and a baseline scan that holds all of it.
#include <array>
#include <cstddef>
#include <cstdint>

#include "image/views.hpp"

namespace fusionloader {

// As a DHT segment gives it: how many codes there are of each length (1 to 16; the first is
// unused), and the symbols of all codes in order.
struct HuffmanCode {
  std::array<uint8_t, 17> counts;
  std::array<uint8_t, 256> symbols;
};

struct FrameComponent {
  int h, v;                             // sampling factors
  std::array<uint16_t, 64> quantisers;  // row by row
};

struct Frame {
  int width, height;
  int count;  // of components: 1 (grey) or 3 (YCbCr)
  std::array<FrameComponent, 3> components;

  int most_h() const { return components[0].h; }
  int most_v() const { return components[0].v; }
};

struct ScanCodes {
  HuffmanCode dc, ac;
};

struct BaselineScan : Frame {
  std::array<ScanCodes, 3> codes;  // of the components
  int restart_interval;            // in MCUs; 0: none
  ByteView data;  // from the first byte of entropy-coded data to the end of the file
};

}  // namespace fusionloader
