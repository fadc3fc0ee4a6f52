#include "cuda/arena.hpp"

#include <iterator>
#include <string>

#include "cuda/error.hpp"

namespace fusionloader::cuda {
namespace {

// False where it is more than the numbers can say.
bool round_up(uint64_t number, uint64_t& rounded) {
  rounded = (number + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
  return rounded >= number;
}

}  // namespace

void Arena::add(uint64_t address, uint64_t bytes, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t begin = 0;
  const uint64_t end = (address + bytes) / kArenaAlign * kArenaAlign;
  if (address + bytes < address || !round_up(address, begin) || end <= begin)
    throw Error(Fault::size, "a range of " + std::to_string(bytes) + " bytes has no room for one");
  const auto next = ranges_.lower_bound(address);
  const bool overlaps_next = next != ranges_.end() && next->first < address + bytes;
  const bool overlaps_previous = next != ranges_.begin() && containing(address) != ranges_.end();
  if (overlaps_next || overlaps_previous)
    throw Error(Fault::grant, "a range at " + std::to_string(address) + " is in the pool already");
  ranges_[address] = {bytes, device, 0, false, {{begin, end - begin}}};
}

Arena::Ranges::iterator Arena::require(uint64_t address) {
  const auto range = ranges_.find(address);
  if (range == ranges_.end())
    throw Error(Fault::grant, "no range of the pool begins at " + std::to_string(address));
  return range;
}

Arena::Ranges::iterator Arena::containing(uint64_t address) {
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return ranges_.end();
  --range;
  return address - range->first < range->second.bytes ? range : ranges_.end();
}

void Arena::remove(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto range = require(address);
  if (range->second.live != 0)
    throw Error(Fault::grant,
                std::to_string(range->second.live) + " bytes of the range are allocated still");
  ranges_.erase(range);
}

void Arena::freeze(uint64_t address, bool frozen) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require(address)->second.frozen = frozen;
}

std::optional<uint64_t> Arena::allocate(uint64_t bytes, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t taken = 0;
  if (bytes == 0 || !round_up(bytes, taken)) return std::nullopt;
  for (auto& [begin, range] : ranges_) {
    if (range.frozen || range.device != device) continue;
    for (auto hole = range.holes.begin(); hole != range.holes.end(); ++hole) {
      const auto [address, room] = *hole;
      if (room < taken) continue;
      range.holes.erase(hole);
      if (room > taken) range.holes.emplace(address + taken, room - taken);
      range.live += taken;
      live_.emplace(address, taken);
      return address;
    }
  }
  return std::nullopt;
}

bool Arena::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  const uint64_t bytes = found->second;
  live_.erase(found);
  Range& range = containing(address)->second;
  range.live -= bytes;
  auto hole = range.holes.emplace(address, bytes).first;
  const auto next = std::next(hole);
  if (next != range.holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    range.holes.erase(next);
  }
  if (hole == range.holes.begin()) return true;
  const auto previous = std::prev(hole);
  if (previous->first + previous->second == hole->first) {
    previous->second += hole->second;
    range.holes.erase(hole);
  }
  return true;
}

std::optional<int> Arena::device_of(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (live_.count(address) == 0) return std::nullopt;
  return containing(address)->second.device;
}

bool Arena::is_empty() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.empty();
}

uint64_t Arena::live_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [address, range] : ranges_) bytes += range.live;
  return bytes;
}

uint64_t Arena::live_bytes(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return require(address)->second.live;
}

}  // namespace fusionloader::cuda
