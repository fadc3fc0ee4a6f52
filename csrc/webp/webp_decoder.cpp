#include "webp/webp_decoder.hpp"

#include <cstring>

#include <webp/decode.h>
#include <webp/demux.h>

#include "image/rows.hpp"
#include "ops/limits.hpp"

namespace fusionloader {
namespace {

// The chunks of a file's one image. Pillow has libwebp look for them likewise.
bool find_image(ByteView encoded, ByteView& image, int& width, int& height) {
  const WebPData data{encoded.data, encoded.size};
  WebPDemuxer* demuxer = WebPDemux(&data);
  if (!demuxer) return false;
  WebPIterator frame{};
  const uint32_t canvas_width = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH);
  const uint32_t canvas_height = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT);
  const bool one = WebPDemuxGetI(demuxer, WEBP_FF_FRAME_COUNT) == 1 &&
                   !(WebPDemuxGetI(demuxer, WEBP_FF_FORMAT_FLAGS) & ANIMATION_FLAG) &&
                   WebPDemuxGetFrame(demuxer, 1, &frame);
  const bool fills = one && frame.complete && frame.x_offset == 0 && frame.y_offset == 0 &&
                     static_cast<uint32_t>(frame.width) == canvas_width &&
                     static_cast<uint32_t>(frame.height) == canvas_height;
  if (fills) {
    image = {frame.fragment.bytes, frame.fragment.size};
    width = frame.width;
    height = frame.height;
  }
  if (one) WebPDemuxReleaseIterator(&frame);
  WebPDemuxDelete(demuxer);
  return fills;
}

}  // namespace

bool WebpDecoder::begins(ByteView encoded) {
  return encoded.size >= 16 && std::memcmp(encoded.data, "RIFF", 4) == 0 &&
         std::memcmp(encoded.data + 8, "WEBP", 4) == 0;
}

bool WebpDecoder::open(ByteView encoded) {
  return find_image(encoded, image_, width_, height_) && width_ > 0 && height_ > 0 &&
         static_cast<uint64_t>(width_) * static_cast<uint64_t>(height_) <= most_decoded_pixels;
}

bool WebpDecoder::start(Rect window, int denominator, EntryIndex) {
  if (denominator != 1 || !lies_inside(window, width_, height_)) return false;
  window_ = window;
  const auto stride = static_cast<size_t>(width_) * 4;
  const size_t size = stride * static_cast<size_t>(height_);
  if (pixels_.size() < size + row_slack) pixels_.resize(size + row_slack);
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return false;
  config.output.colorspace = MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = pixels_.data();
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size = size;
  const bool decoded = WebPDecode(image_.data, image_.size, &config) == VP8_STATUS_OK;
  WebPFreeDecBuffer(&config.output);
  return decoded;
}

bool WebpDecoder::rows(int y, int count, const uint8_t** rows) {
  if (y < 0 || count > rows_at_once || count > window_.height - y) return false;
  for (int i = 0; i < count; ++i) {
    const auto row = static_cast<size_t>(window_.y + y + i) * static_cast<size_t>(width_);
    rows[i] = &pixels_[(row + static_cast<size_t>(window_.x)) * 4];
  }
  return true;
}

void WebpDecoder::close() {
  if (pixels_.capacity() > largest_kept_buffer) std::vector<uint8_t>().swap(pixels_);
}

}  // namespace fusionloader
