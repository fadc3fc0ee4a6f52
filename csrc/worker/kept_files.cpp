#include "worker/kept_files.hpp"

namespace fusionloader {
namespace {

constexpr int channels = 3;

size_t bytes_of(int width, int height) {
  return static_cast<size_t>(width) * static_cast<size_t>(height) * channels;
}

bool in(const FileStore* store, uint64_t item) { return store && store->holds(item); }

}  // namespace

bool KeptFiles::holds(uint64_t item) const {
  return in(stores_.decoded, item) || in(stores_.encoded, item) || in(stores_.disk_decoded, item) ||
         in(stores_.disk_encoded, item);
}

std::optional<KeptFiles::Found> KeptFiles::find(uint64_t item, FileStamp stamp) {
  stamp_ = stamp;
  if (const auto found = pixels(stores_.decoded, item))
    return Found{WorkerCount::cache_decoded, found, {}};
  if (in(stores_.encoded, item))
    if (const auto found = stores_.encoded->find(item, stamp_, buffer_))
      return Found{WorkerCount::cache_encoded, {}, found->data};
  // What comes from the disk is in memory the next time, where there is room.
  if (const auto found = pixels(stores_.disk_decoded, item)) {
    if (stores_.decoded)
      stores_.decoded->put(item, stamp_, static_cast<uint32_t>(found->width),
                           static_cast<uint32_t>(found->height),
                           {found->pixels, bytes_of(found->width, found->height)});
    return Found{WorkerCount::cache_disk_decoded, found, {}};
  }
  if (in(stores_.disk_encoded, item))
    if (const auto found = stores_.disk_encoded->find(item, stamp_, buffer_)) {
      if (stores_.encoded) stores_.encoded->put(item, stamp_, 0, 0, found->data);
      return Found{WorkerCount::cache_disk_encoded, {}, found->data};
    }
  return std::nullopt;
}

std::optional<PixelView> KeptFiles::pixels(FileStore* store, uint64_t item) {
  if (!in(store, item)) return std::nullopt;
  const auto kept = store->find(item, stamp_, buffer_);
  const auto width = kept ? static_cast<int>(kept->width) : 0,
             height = kept ? static_cast<int>(kept->height) : 0;
  if (width <= 0 || height <= 0 || kept->data.size != bytes_of(width, height)) return std::nullopt;
  return PixelView{kept->data.data, width, height, channels, ptrdiff_t{width} * channels};
}

void KeptFiles::begin(uint64_t item, FileStamp stamp, ByteView encoded, bool is_kept) {
  item_ = item;
  stamp_ = stamp;
  encoded_ = encoded;
  is_kept_ = is_kept;
  tried_ = pixels_kept_ = false;
  leave_room_for_indexes();
}

// An index is small, and serves whatever has no room as pixels: the larger tiers leave it some.
void KeptFiles::leave_room_for_indexes() {
  if (!stores_.index || !stores_.control) return;
  constexpr uint64_t of_file = 64;  // an index has about so small a share of it
  const uint64_t to_come =
      stores_.index->to_come(stores_.control->samples(), encoded_.size / of_file);
  for (FileStore* store : {stores_.encoded, stores_.decoded})
    if (store) store->leave(to_come);
}

bool KeptFiles::end() {
  if (filling_) filling_->abandon(item_);  // decoding has failed
  filling_ = nullptr;
  if (pixels_kept_ || is_kept_) return pixels_kept_;
  for (FileStore* store : {stores_.encoded, stores_.disk_encoded})
    if (store && store->put(item_, stamp_, 0, 0, encoded_)) return true;
  return false;
}

void KeptFiles::pixels_used(uint64_t ns) {
  if (measuring()) stores_.control->count_pixels(ns);
}

bool KeptFiles::has_room_for_bytes() const {
  for (const FileStore* store : {stores_.encoded, stores_.disk_encoded})
    if (store && store->lacks(item_, encoded_.size)) return true;
  return false;
}

bool KeptFiles::wants_pixels(int width, int height) {
  if (!stores_.decoded && !stores_.disk_decoded) return false;
  const size_t bytes = bytes_of(width, height);
  if ((stores_.encoded || stores_.disk_encoded) && stores_.control) {
    if (measuring()) {
      stores_.control->count_image(bytes);
      return !is_kept_ && CacheControl::is_tried(item_);
    }
    // Bytes that are kept, from when it was not known what is best, become pixels where there is
    // room; and what there is no room for as bytes may be kept as pixels.
    const bool decoded = stores_.control->tier_of(item_) == Tier::decoded;
    if (!decoded && (is_kept_ || has_room_for_bytes())) return false;
  }
  return begin_pixels(bytes);
}

bool KeptFiles::begin_pixels(size_t bytes) {
  for (FileStore* store : {stores_.decoded, stores_.disk_decoded})
    if (store && store->begin(item_, stamp_, bytes)) {
      filling_ = store;
      return true;
    }
  return false;
}

void KeptFiles::keep_pixels(const PixelView& image) {
  tried_ = true;
  if (!filling_) return;  // they were made to be measured
  pixels_kept_ = filling_->commit(item_, static_cast<uint32_t>(image.width),
                                  static_cast<uint32_t>(image.height),
                                  {image.pixels, bytes_of(image.width, image.height)});
  filling_ = nullptr;
}

std::optional<EntryIndex> KeptFiles::index() {
  const auto kept = stores_.index ? stores_.index->find(item_, stamp_, buffer_) : std::nullopt;
  if (!kept) return std::nullopt;
  return EntryIndex{reinterpret_cast<const ScanEntry*>(kept->data.data),
                    kept->data.size / sizeof(ScanEntry)};
}

bool KeptFiles::wants_index() { return stores_.index && stores_.index->lacks(item_, 0); }

void KeptFiles::keep_index(EntryIndex index) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(index.entries);
  stores_.index->put(item_, stamp_, 0, 0, {bytes, index.count * sizeof(ScanEntry)});
}

}  // namespace fusionloader
