#include "jpeg/region_decoder.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include <jpeglib.h>

#include "image/rows.hpp"
#include "jpeg/describe_scan.hpp"
#include "jpeg/progressive_decoder.hpp"
#include "jpeg/window_decoder.hpp"

namespace fusionloader {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // first: libjpeg hands out a pointer to it
  std::jmp_buf escape;
};

[[noreturn]] void escape(j_common_ptr info) {
  std::longjmp(reinterpret_cast<ErrorManager*>(info->err)->escape, 1);
}

void count_warning(j_common_ptr info, int level) {
  if (level < 0) ++info->err->num_warnings;
}

void print_nothing(j_common_ptr) {}

// Runs `call`, which must hold no object with a destructor, and says whether libjpeg finished it.
template <class Call>
__attribute__((noinline)) bool guarded(ErrorManager& errors, Call call) {
  if (setjmp(errors.escape)) return false;
  call();
  return true;
}

bool begins_well(ByteView encoded) {
  return encoded.size >= 5 && encoded.data[0] == 0xFF && encoded.data[1] == 0xD8 &&
         encoded.data[2] == 0xFF;
}

bool ends_well(ByteView encoded) {
  const uint8_t* end = encoded.data + encoded.size;
  return end[-2] == 0xFF && end[-1] == 0xD9;
}

}  // namespace

struct RegionDecoder::State {
  // Who gives the rows.
  enum class Rows { libjpeg, windows, progressive };

  // Made anew for each file: it would keep the tables of the one before, and a file that lacks a
  // table would be decoded with them.
  jpeg_decompress_struct info{};
  ErrorManager errors{};
  const BaselineDecoder baseline;
  const bool strict;
  WindowDecoder windows;
  ProgressiveDecoder progressive;
  ScanScript script;
  ByteView file{};
  bool open = false;
  Rows from = Rows::libjpeg;
  bool whole = false;  // the file ends as one should
  Rect window{};
  size_t bytes_before = 0;  // the window's first pixel in a decoded row
  size_t stride = 0;        // of `pixels`, which holds rows_at_once rows
  std::vector<uint8_t> pixels;

  State(SimdLevel simd, BaselineDecoder decoder, bool exact_verdicts)
      : baseline(decoder),
        strict(exact_verdicts),
        windows(simd, exact_verdicts),
        progressive(simd) {
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = escape;
    errors.base.emit_message = count_warning;
    errors.base.output_message = print_nothing;
  }
  ~State() {
    if (open) jpeg_destroy_decompress(&info);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool clean() const { return errors.base.num_warnings == 0; }

  // Who decodes the opened file; describes its only scan where that is baseline.
  Rows choose(BaselineScan& scan, int denominator) {
    if (baseline == BaselineDecoder::libjpeg) return Rows::libjpeg;
    if (describe_scan(info, scan))
      return WindowRows::supports(scan, denominator) ? Rows::windows : Rows::libjpeg;
    const bool several = info.progressive_mode || info.comps_in_scan < info.num_components;
    const bool known = info.jpeg_color_space != JCS_RGB && several && script.read(file) &&
                       ProgressiveDecoder::supports(script, denominator);
    return known ? Rows::progressive : Rows::libjpeg;
  }

  bool row(int y, uint8_t* out) {
    return from == Rows::windows ? windows.row(y, out) : progressive.row(y, out);
  }

  // Rows of `width` pixels are decoded, of which the window begins after `before`.
  void place(Rect wanted, int before, int width) {
    window = wanted;
    bytes_before = static_cast<size_t>(before) * 4;
    stride = static_cast<size_t>(width) * 4 + row_slack;
    if (pixels.size() < rows_at_once * stride) pixels.resize(rows_at_once * stride);
  }

  // Whether all scans of a progressive file were there. libjpeg guesses what is missing, each
  // release in its own way and without a warning.
  bool complete() const {
    if (!info.coef_bits) return true;
    for (int component = 0; component < info.num_components; ++component)
      for (const int missing_bits : info.coef_bits[component])
        if (missing_bits != 0) return false;
    return true;
  }

  // Whether cropping columns and skipping rows gives the pixels of a full decode: the layouts that
  // the tests vouch for. The first component is at full resolution, the others are alike.
  bool partial_decode_is_exact() const {
    if (info.num_components == 1) return true;
    const jpeg_component_info* parts = info.comp_info;
    if (parts[1].h_samp_factor != 1 || parts[1].v_samp_factor != 1) return false;
    if (parts[2].h_samp_factor != 1 || parts[2].v_samp_factor != 1) return false;
    const int h = parts[0].h_samp_factor, v = parts[0].v_samp_factor;
    return (h == 1 || h == 2 || h == 4) && (v == 1 || v == 2) && h * v <= 4;
  }
};

RegionDecoder::RegionDecoder(SimdLevel simd, BaselineDecoder baseline, bool strict)
    : state_(std::make_unique<State>(simd, baseline, strict)) {}
RegionDecoder::~RegionDecoder() = default;

void RegionDecoder::close() {
  if (!state_->open) return;
  state_->open = false;
  state_->windows.release_large_buffers();
  state_->progressive.release_large_buffers();
  jpeg_destroy_decompress(&state_->info);
}

bool RegionDecoder::open(ByteView encoded) {
  close();
  State& state = *state_;
  if (!begins_well(encoded)) return false;
  state.file = encoded;
  state.whole = ends_well(encoded);
  if (state.strict && !state.whole) return false;
  jpeg_decompress_struct* info = &state.info;
  state.open = true;
  state.errors.base.num_warnings = 0;
  const bool read = guarded(state.errors, [info, encoded] {
    jpeg_create_decompress(info);
    jpeg_mem_src(info, encoded.data, static_cast<unsigned long>(encoded.size));
    jpeg_read_header(info, TRUE);
  });
  const bool ours =
      read && state.clean() && info->data_precision == 8 &&
      static_cast<uint64_t>(info->image_width) * info->image_height <= most_decoded_pixels &&
      ((info->num_components == 1 && info->jpeg_color_space == JCS_GRAYSCALE) ||
       (info->num_components == 3 &&
        (info->jpeg_color_space == JCS_YCbCr || info->jpeg_color_space == JCS_RGB)));
  if (!ours) close();
  return ours;
}

int RegionDecoder::width() const { return static_cast<int>(state_->info.image_width); }
int RegionDecoder::height() const { return static_cast<int>(state_->info.image_height); }
BaselineDecoder RegionDecoder::started() const {
  return state_->from == State::Rows::libjpeg ? BaselineDecoder::libjpeg : BaselineDecoder::own;
}

bool RegionDecoder::record(std::vector<ScanEntry>& entries) {
  State& state = *state_;
  BaselineScan scan;
  const bool own = state.baseline == BaselineDecoder::own && describe_scan(state.info, scan) &&
                   WindowRows::supports(scan);
  if (own && state.windows.record(scan, entries)) return true;
  entries.clear();
  return false;
}

bool RegionDecoder::start(Rect window, int denominator, EntryIndex index) {
  State& state = *state_;
  jpeg_decompress_struct* info = &state.info;
  BaselineScan scan;
  state.from = state.choose(scan, denominator);
  if (state.from != State::Rows::libjpeg) {
    const auto reduced = [denominator](unsigned side) {
      return static_cast<int>((side - 1) / static_cast<unsigned>(denominator) + 1);
    };
    if (!lies_inside(window, reduced(info->image_width), reduced(info->image_height))) return false;
    state.place(window, 0, window.width);
    return state.from == State::Rows::windows
               ? state.windows.start(scan, window, denominator, index)
               : state.progressive.start(state.script, window, denominator);
  }
  // libjpeg does not look behind the last row that it is asked for; Pillow has it do so.
  if (!state.whole || (state.strict && !state.script.read(state.file))) return false;
  const bool started = guarded(state.errors, [info, denominator] {
    info->out_color_space = JCS_EXT_RGBX;
    info->scale_num = 1;
    info->scale_denom = static_cast<unsigned>(denominator);
    info->dct_method = JDCT_ISLOW;
    info->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(info);
  });
  if (!started || !state.clean() || !state.complete()) return false;
  const int full_width = static_cast<int>(info->output_width);
  const int full_height = static_cast<int>(info->output_height);
  if (!lies_inside(window, full_width, full_height)) return false;
  int left = 0, right = full_width;
  JDIMENSION skipped = 0;
  if (state.partial_decode_is_exact()) {
    // One more pixel at each side, so that upsampling sees the chroma beyond the window, and room
    // for three chroma samples, below which libjpeg upsamples without interpolation.
    constexpr int least_width = 32;
    right = std::min(std::max(window.x + window.width + 1, least_width), full_width);
    left = std::max(std::min(window.x - 1, right - least_width), 0);
    skipped = static_cast<JDIMENSION>(window.y);
  }
  // libjpeg moves the left edge to a block's.
  JDIMENSION first = static_cast<JDIMENSION>(left), columns = static_cast<JDIMENSION>(right - left);
  JDIMENSION *first_at = &first, *columns_at = &columns;
  const bool placed = guarded(state.errors, [=] {
    if (*columns_at != info->output_width) jpeg_crop_scanline(info, first_at, columns_at);
    if (skipped) jpeg_skip_scanlines(info, skipped);
  });
  if (!placed || !state.clean()) return false;
  state.place(window, window.x - static_cast<int>(first), static_cast<int>(info->output_width));
  return true;
}

bool RegionDecoder::rows(int y, int count, const uint8_t** rows) {
  State& state = *state_;
  jpeg_decompress_struct* info = &state.info;
  if (y < 0 || count > rows_at_once || count > state.window.height - y) return false;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    rows[i] = &state.pixels[i * state.stride + state.bytes_before];
  if (state.from != State::Rows::libjpeg) {
    for (int i = 0; i < count; ++i)
      if (!state.row(y + i, &state.pixels[static_cast<size_t>(i) * state.stride])) return false;
    return true;
  }
  const auto first = static_cast<JDIMENSION>(state.window.y + y);
  const auto end = first + static_cast<JDIMENSION>(count);
  uint8_t* pixels = state.pixels.data();
  const size_t stride = state.stride;
  const bool read = guarded(state.errors, [=] {
    JSAMPROW lines[rows_at_once];
    // What lies above the first row is decoded over it.
    lines[0] = pixels;
    while (info->output_scanline < first && jpeg_read_scanlines(info, lines, 1) == 1) {
    }
    for (JDIMENSION i = 0; i < end - first; ++i) lines[i] = pixels + i * stride;
    while (info->output_scanline >= first && info->output_scanline < end) {
      const JDIMENSION done = info->output_scanline - first;
      if (jpeg_read_scanlines(info, lines + done, end - first - done) == 0) break;
    }
  });
  return read && state.clean() && info->output_scanline == end;
}

bool read_image_size(ImageDecoder& decoder, ByteView encoded, int& width, int& height) {
  if (!decoder.open(encoded)) return false;
  width = decoder.width();
  height = decoder.height();
  decoder.close();
  return true;
}

}  // namespace fusionloader
