#include "png/png_decoder.hpp"

#include <algorithm>

#include <libdeflate.h>

#include "image/rows.hpp"
#include "ops/interleave.hpp"
#include "ops/limits.hpp"

namespace fusionloader {
namespace {

// Deflate makes at most 1032 bytes of one.
constexpr size_t most_inflation = 1032;
// The last rows that were asked for, and the one above them.
constexpr int line_count = rows_at_once + 1;

// A stream that needs more of a window than it names is refused by zlib alone.
bool names_enough_window(ByteView stream, size_t size) {
  const int bits = (stream.data[0] >> 4) + 8;
  return bits == 15 || (bits < 15 && size <= size_t{1} << bits);
}

}  // namespace

void PngDecoder::Free::operator()(libdeflate_decompressor* made) const {
  libdeflate_free_decompressor(made);
}

PngDecoder::PngDecoder(SimdLevel simd)
    : inflater_(libdeflate_alloc_decompressor()), simd_(simd), kernels_(unfilter_kernels(simd)) {}
PngDecoder::~PngDecoder() = default;

bool PngDecoder::inflate() {
  ByteView stream = file_.data[0];
  if (file_.data.size() > 1) {
    joined_.clear();
    for (const ByteView part : file_.data)
      joined_.insert(joined_.end(), part.data, part.data + part.size);
    stream = {joined_.data(), joined_.size()};
  }
  const size_t size = file_.row_bytes() * static_cast<size_t>(file_.height);
  if (size / most_inflation > stream.size || !names_enough_window(stream, size)) return false;
  grow(filtered_, size + filtered_slack);
  size_t read = 0;
  return inflater_ &&
         libdeflate_zlib_decompress_ex(inflater_.get(), stream.data, stream.size, filtered_.data(),
                                       size, &read, nullptr) == LIBDEFLATE_SUCCESS &&
         read == stream.size;
}

bool PngDecoder::start(Rect window, int denominator, EntryIndex) {
  if (denominator != 1 || !lies_inside(window, file_.width, file_.height) || !inflate())
    return false;
  for (size_t y = 0; y < static_cast<size_t>(file_.height); ++y)
    if (filtered_[y * file_.row_bytes()] >= filter_count) return false;
  window_ = window;
  next_ = 0;
  const auto right = static_cast<size_t>(window.x + window.width);
  line_stride_ = (file_.samples() == 1 ? right : 4 * right) + row_slack;
  spread_stride_ = static_cast<size_t>(window.width) * 4 + row_slack;
  grow(lines_, line_count * line_stride_);
  if (file_.samples() == 1) grow(spread_, rows_at_once * spread_stride_);
  // Above the first row.
  std::fill_n(line(-1), line_stride_, uint8_t{0});
  return true;
}

uint8_t* PngDecoder::line(int y) {
  return &lines_[static_cast<size_t>((y + line_count) % line_count) * line_stride_];
}

void PngDecoder::unfilter_next() {
  const uint8_t* row = &filtered_[static_cast<size_t>(next_) * file_.row_bytes()];
  const auto width = static_cast<size_t>(window_.x + window_.width);
  const uint8_t* above = line(next_ - 1);
  uint8_t* out = line(next_++);
  if (file_.color == PngColor::rgb)
    kernels_.rgb[*row](row + 1, above, width, out);
  else if (file_.color == PngColor::rgba)
    kernels_.rgba[*row](row + 1, above, width, out);
  else
    unfilter_bytes(*row, row + 1, above, width, out);
}

// One byte a pixel to RGBX; false for a color that the palette lacks.
bool PngDecoder::spread(const uint8_t* bytes, uint8_t* pixels) const {
  const auto width = static_cast<size_t>(window_.width);
  if (file_.color == PngColor::grey) {
    interleave_kernels(simd_).join_rgbx(bytes, bytes, bytes, width, pixels);
    return true;
  }
  if (*std::max_element(bytes, bytes + width) >= file_.colors) return false;
  for (size_t x = 0; x < width; ++x)
    for (size_t sample = 0; sample < 3; ++sample)
      pixels[4 * x + sample] = file_.palette[3 * size_t{bytes[x]} + sample];
  return true;
}

bool PngDecoder::rows(int y, int count, const uint8_t** rows) {
  if (y < 0 || count > rows_at_once || count > window_.height - y) return false;
  while (next_ < window_.y + y + count) unfilter_next();
  for (int i = 0; i < count; ++i) {
    const uint8_t* from = line(window_.y + y + i);
    if (file_.samples() == 1) {
      uint8_t* pixels = &spread_[static_cast<size_t>(i) * spread_stride_];
      if (!spread(from + window_.x, pixels)) return false;
      rows[i] = pixels;
    } else {
      rows[i] = from + 4 * static_cast<size_t>(window_.x);
    }
  }
  return true;
}

void PngDecoder::close() {
  for (std::vector<uint8_t>* buffer : {&joined_, &filtered_, &lines_, &spread_})
    if (buffer->capacity() > largest_kept_buffer) std::vector<uint8_t>().swap(*buffer);
}

}  // namespace fusionloader
