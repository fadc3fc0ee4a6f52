#include "convert/element_order.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace fusionloader {
namespace {

using Loops = std::vector<OrderLoop>;

constexpr size_t most_repeats = 1 << 10;

[[noreturn]] void refuse(const char* why) {
  throw std::invalid_argument(std::string("the order of elements ") + why);
}

// Whether the loops, ordered by the steps in `member`, count from 0 to `end` - 1 without gaps.
bool count_to(Loops loops, size_t OrderLoop::* member, size_t end) {
  std::sort(loops.begin(), loops.end(),
            [&](const OrderLoop& a, const OrderLoop& b) { return a.*member < b.*member; });
  size_t next = 1;
  for (const OrderLoop& loop : loops) {
    if (loop.*member != next || loop.size > end / next) return false;
    next *= loop.size;
  }
  return next == end;
}

// The places in the result that the loops step through, in the order of the image.
std::vector<size_t> places(Loops loops) {
  std::sort(loops.begin(), loops.end(),
            [](const OrderLoop& a, const OrderLoop& b) { return a.from > b.from; });
  std::vector<size_t> found{0};
  for (const OrderLoop& loop : loops) {
    std::vector<size_t> next;
    for (const size_t place : found)
      for (size_t i = 0; i < loop.size; ++i) next.push_back(place + i * loop.to);
    found = std::move(next);
  }
  return found;
}

// Takes the part of a loop that stays within an axis of `extent` elements; what is left steps over
// whole lengths of the axis.
void take_part(OrderLoop& loop, size_t extent, Loops& axis) {
  if (loop.size == 1) return;
  if (loop.from < extent) {
    if (extent % loop.from != 0) refuse("steps over an edge");
    const size_t size = std::min(loop.size, extent / loop.from);
    if (loop.size % size != 0) refuse("steps over an edge");
    axis.push_back({size, loop.from, loop.to});
    loop = {loop.size / size, extent, loop.to * size};
  }
  if (loop.size > 1 && loop.from % extent != 0) refuse("steps over an edge");
  loop.from /= extent;
}

// The next rows of a patch follow each run: their memory is fetched meanwhile.
constexpr size_t bytes_ahead = 128;

template <size_t bytes>
void copy_runs(const uint8_t* line, const std::vector<size_t>& places, size_t element_size,
               uint8_t* out) {
  for (const size_t place : places) {
    uint8_t* to = out + place * element_size;
    std::memcpy(to, line, bytes);
    __builtin_prefetch(to + bytes_ahead, 1);
    line += bytes;
  }
}

void copy_runs(const uint8_t* line, const std::vector<size_t>& places, size_t bytes,
               size_t element_size, uint8_t* out) {
  // Patches of 14 and 16 pixels in float32: copies of constant size take a quarter of the time.
  if (bytes == 56) return copy_runs<56>(line, places, element_size, out);
  if (bytes == 64) return copy_runs<64>(line, places, element_size, out);
  for (const size_t place : places) {
    std::memcpy(out + place * element_size, line, bytes);
    line += bytes;
  }
}

}  // namespace

ElementOrder::ElementOrder(const std::vector<OrderLoop>& loops, size_t width, size_t height,
                           size_t channels) {
  Loops all, columns, rows, planes, repeats;
  size_t repeated = 1;
  const size_t elements = width * height * channels;
  for (OrderLoop loop : loops) {
    if (loop.size == 0) refuse("is empty");
    if (loop.size == 1) continue;
    all.push_back(loop);
    if (loop.from == 0) {
      if (loop.size > most_repeats / repeated) refuse("repeats too often");
      repeats.push_back(loop);
      repeated *= loop.size;
      continue;
    }
    take_part(loop, width, columns);
    take_part(loop, height, rows);
    take_part(loop, channels, planes);
    if (loop.size > 1) refuse("leaves the image");
  }
  if (!count_to(columns, &OrderLoop::from, width) || !count_to(rows, &OrderLoop::from, height) ||
      !count_to(planes, &OrderLoop::from, channels))
    refuse("leaves out a part of the image");
  if (!count_to(all, &OrderLoop::to, elements * repeated)) refuse("leaves gaps in the result");
  rows_ = places(rows);
  channels_ = places(planes);
  repeats_ = places(repeats);
  const std::vector<size_t> at = places(columns);
  while (run_ < width && at[run_] == at[0] + run_) ++run_;
  for (size_t x = 0; x < width; x += run_) runs_.push_back(at[x]);
}

void ElementOrder::write(const uint8_t* line, size_t y, size_t channel, size_t element_size,
                         uint8_t* out) const {
  for (const size_t repeat : repeats_)
    copy_runs(line, runs_, run_ * element_size, element_size,
              out + (rows_[y] + channels_[channel] + repeat) * element_size);
}

}  // namespace fusionloader
