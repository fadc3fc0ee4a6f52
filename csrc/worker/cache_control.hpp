#pragma once
// What the workers of a dataset have measured, and which tier a sample is kept in: one page of
// shared memory. Laid out by fusionloader/cache/tiers/cache_memory.py.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "queue/mapping.hpp"
#include "rng/mix.hpp"
#include "worker/tier_choice.hpp"

namespace fusionloader {

enum class Tier { encoded, decoded };

// While rates are being measured, all samples are kept as they are encoded; of some the pixels are
// made, too, and not kept.
class CacheControl {
 public:
  // Throws MappingMismatch where the memory is no page of this version.
  static CacheControl* of(const Mapping& memory) {
    auto* found = reinterpret_cast<CacheControl*>(memory.data());
    if (memory.bytes() < sizeof(CacheControl) || found->magic_ != magic)
      throw MappingMismatch::version("no control page of a cache");
    return found;
  }
  uint64_t samples() const { return samples_; }
  bool measuring() const { return decided_.load(std::memory_order_relaxed) == 0; }

  void count_read(uint64_t ns, uint64_t bytes) {
    reads_.fetch_add(1);
    read_ns_.fetch_add(ns);
    read_bytes_.fetch_add(bytes);
    if (is_enough()) decide();
  }
  void count_window(uint64_t ns) {
    windows_.fetch_add(1);
    window_ns_.fetch_add(ns);
  }
  void count_pixels(uint64_t ns) {
    pixels_.fetch_add(1);
    pixels_ns_.fetch_add(ns);
  }
  void count_image(uint64_t bytes) {
    images_.fetch_add(1);
    image_bytes_.fetch_add(bytes);
  }

  // Whether a sample's pixels are made in order to be measured.
  static bool is_tried(uint64_t item) { return mix_word(item) % one_in == 0; }
  // Where a sample is to be kept: a function of its number, the same for all workers.
  Tier tier_of(uint64_t item) const {
    const bool decoded = !measuring() && mix_word(item) >> 32 < decoded_share_.load();
    return decoded ? Tier::decoded : Tier::encoded;
  }

 private:
  static constexpr uint64_t fewest_reads = 8, most_reads = 128, one_in = 8, patience = 4;

  bool is_enough() const {
    const uint64_t wanted = std::clamp(samples_ / 16, fewest_reads, most_reads);
    if (!measuring() || reads_.load() < wanted) return false;
    return is_measured() || reads_.load() >= patience * wanted;
  }
  bool is_measured() const {
    return windows_.load() > 0 && pixels_.load() > 0 && images_.load() > 0;
  }
  static double mean(const std::atomic<uint64_t>& sum, const std::atomic<uint64_t>& count) {
    return static_cast<double>(sum.load()) / static_cast<double>(count.load());
  }
  void decide() {
    constexpr double whole = 4294967296.0;
    // What native decoders know nothing of is dearest to decode.
    const double share = is_measured() ? best_share() : 1.0;
    decoded_share_.store(static_cast<uint64_t>(share * whole));
    decided_.store(1);
  }
  double best_share() const {
    return best_decoded_share({
        static_cast<double>(samples_),
        static_cast<double>(room_),
        mean(read_bytes_, reads_),
        mean(image_bytes_, images_),
        mean(read_ns_, reads_) / 1e9,
        mean(window_ns_, windows_) / 1e9,
        mean(pixels_ns_, pixels_) / 1e9,
        static_cast<double>(workers_),
        static_cast<double>(cores_),
    });
  }

  static constexpr uint64_t magic = 0x3172746e6f634c46;  // "FLcontr1", of this layout

  uint64_t magic_;
  uint64_t samples_, room_, workers_, cores_;           // what there is, room in bytes
  std::atomic<uint64_t> decided_;                       // 0: rates are being measured
  std::atomic<uint64_t> decoded_share_;                 // of the samples kept, in 2^-32
  std::atomic<uint64_t> reads_, read_ns_, read_bytes_;  // of files, from storage
  std::atomic<uint64_t> windows_, window_ns_;           // samples made of encoded bytes
  std::atomic<uint64_t> pixels_, pixels_ns_;            // samples made of decoded pixels
  std::atomic<uint64_t> images_, image_bytes_;          // decoded images
};

}  // namespace fusionloader
