#pragma once
// What decoders of all formats have in common.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/entry_index.hpp"
#include "image/views.hpp"

namespace fusionloader {

// Above this Pillow warns of a decompression bomb, or refuses: its business.
constexpr uint64_t most_decoded_pixels = 89478485;

// Gives the pixels of one file after the other as Pillow's convert("RGB") does. Every method that
// returns false leaves the file to Pillow. Not thread-safe.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  // Reads the header. `encoded` must stay valid until close() or the next open().
  virtual bool open(ByteView encoded) = 0;
  virtual int width() const = 0;
  virtual int height() const = 0;
  // Whether start() takes denominators other than 1.
  virtual bool shrinks() const { return false; }
  // Whether files of the format may have an index.
  virtual bool is_indexed() const { return false; }
  // The index of the opened file; false, and no entries, for a file that can have none. To be
  // called before start().
  virtual bool record(std::vector<ScanEntry>& entries) {
    entries.clear();
    return false;
  }
  // Prepares to decode at 1/`denominator` of the size, the window given in pixels of that size.
  // The index is the file's, or empty. To be called once after open(). What Pillow would raise for
  // is found here or in rows().
  virtual bool start(Rect window, int denominator, EntryIndex index) = 0;
  // Rows y .. y + count - 1 of the window as RGBX (RGBA, if the file has an alpha channel),
  // count <= rows_at_once, with row_slack readable bytes behind each. `y` is ascending; the rows
  // are valid until the next call.
  virtual bool rows(int y, int count, const uint8_t** rows) = 0;
  virtual void close() = 0;
};

inline bool lies_inside(Rect window, int width, int height) {
  return window.x >= 0 && window.y >= 0 && window.width > 0 && window.height > 0 &&
         window.width <= width - window.x && window.height <= height - window.y;
}

}  // namespace fusionloader
