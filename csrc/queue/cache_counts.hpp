#pragma once
#include <cstddef>

namespace fusionloader {

// What a worker counts of its cache: samples, by where they came from.
enum class CacheCount : size_t {
  decoded,  // pixels in memory
  encoded,  // encoded bytes in memory
  disk_decoded,
  disk_encoded,
  remote,  // encoded bytes of another server
  missed,  // read from storage
  filled,  // of those: kept
};
constexpr size_t kCacheCounts = 7;

}  // namespace fusionloader
