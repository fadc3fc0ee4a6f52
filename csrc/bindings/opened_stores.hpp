#pragma once
// The stores of a dataset as Python opens them, in one object that keeps them mapped.
#include <memory>
#include <optional>

#include "worker/kept_files.hpp"

namespace fusionloader {

struct OpenedStores {
  FileStore *index = nullptr, *encoded = nullptr, *decoded = nullptr, *disk_encoded = nullptr,
            *disk_decoded = nullptr;
  std::optional<Mapping> control;

  CacheStores stores() const {
    return {index, encoded, decoded, disk_encoded, disk_decoded, page()};
  }
  // Null where nothing is to be measured any more.
  CacheControl* measured() const { return page() && page()->measuring() ? page() : nullptr; }
  bool wants_pixels(uint64_t place) const {
    if (!decoded && !disk_decoded) return false;
    return (!encoded && !disk_encoded) || !page() || page()->tier_of(place) == Tier::decoded;
  }
  bool tries_pixels(uint64_t place) const {
    return measured() && (decoded || disk_decoded) && CacheControl::is_tried(place);
  }

 private:
  CacheControl* page() const { return control ? CacheControl::of(*control) : nullptr; }
};

}  // namespace fusionloader
