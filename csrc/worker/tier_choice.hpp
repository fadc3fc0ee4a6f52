#pragma once
// Which share of the samples that a cache keeps should be kept as pixels: the one with which an
// epoch is shortest, from measured rates. The rest is kept as encoded bytes. (Seneca, HyCache.)
#include <algorithm>
#include <cstdint>

namespace fusionloader {

struct TierRates {
  double samples;        // of the dataset
  double room;           // bytes of the cache
  double encoded_bytes;  // of a file
  double decoded_bytes;  // of an image
  double read_s;         // of a file from storage, as a worker waits for it
  double window_s;       // to make a sample of encoded bytes
  double pixels_s;       // to make one of pixels
  double workers, cores;
};

// Seconds of an epoch. Workers read and compute one after the other; cores may be fewer than they.
inline double epoch_seconds(const TierRates& rates, double decoded_share) {
  const double bytes =
      decoded_share * rates.decoded_bytes + (1 - decoded_share) * rates.encoded_bytes;
  const double kept = std::min(rates.samples, rates.room / std::max(bytes, 1.0));
  const double reads = (rates.samples - kept) * rates.read_s;
  const double computes =
      rates.samples * rates.window_s - decoded_share * kept * (rates.window_s - rates.pixels_s);
  return std::max((reads + computes) / rates.workers,
                  computes / std::min(rates.workers, rates.cores));
}

inline double best_decoded_share(const TierRates& rates) {
  constexpr int steps = 100;
  double best = 0, least = epoch_seconds(rates, 0);
  const auto attempt = [&](double share) {
    const double seconds = epoch_seconds(rates, share);
    if (seconds < least) {
      least = seconds;
      best = share;
    }
  };
  for (int step = 1; step <= steps; ++step) attempt(static_cast<double>(step) / steps);
  // With this share everything is kept, and nothing of the room is left over.
  const double apart = rates.decoded_bytes - rates.encoded_bytes;
  if (apart > 0)
    attempt(std::clamp((rates.room / rates.samples - rates.encoded_bytes) / apart, 0.0, 1.0));
  return best;
}

}  // namespace fusionloader
