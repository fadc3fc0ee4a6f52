#include "worker/kept_files.hpp"

namespace fusionloader {
namespace {

constexpr int channels = 3;

size_t bytes_of(int width, int height) {
  return static_cast<size_t>(width) * static_cast<size_t>(height) * channels;
}

}  // namespace

std::optional<PixelView> KeptFiles::pixels(uint64_t item, const char* path) const {
  if (!pixels_ || !pixels_->holds(item)) return std::nullopt;
  struct stat info{};
  if (stat(path, &info) != 0) return std::nullopt;
  const auto kept = pixels_->find(item, stamp_of(info));
  if (!kept) return std::nullopt;
  const auto width = static_cast<int>(kept->width), height = static_cast<int>(kept->height);
  return PixelView{kept->data.data, width, height, channels, ptrdiff_t{width} * channels};
}

void KeptFiles::begin(uint64_t item, FileStamp stamp) {
  item_ = item;
  stamp_ = stamp;
}

bool KeptFiles::wants_pixels(int width, int height) {
  return pixels_ && pixels_->lacks(item_, bytes_of(width, height));
}

void KeptFiles::keep_pixels(const PixelView& image) {
  pixels_->put(item_, stamp_, static_cast<uint32_t>(image.width),
               static_cast<uint32_t>(image.height),
               {image.pixels, bytes_of(image.width, image.height)});
}

std::optional<EntryIndex> KeptFiles::index() {
  const auto kept = indexes_ ? indexes_->find(item_, stamp_) : std::nullopt;
  if (!kept) return std::nullopt;
  return EntryIndex{reinterpret_cast<const ScanEntry*>(kept->data.data),
                    kept->data.size / sizeof(ScanEntry)};
}

bool KeptFiles::wants_index() { return indexes_ && indexes_->lacks(item_, 0); }

void KeptFiles::keep_index(EntryIndex index) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(index.entries);
  indexes_->put(item_, stamp_, 0, 0, {bytes, index.count * sizeof(ScanEntry)});
}

}  // namespace fusionloader
