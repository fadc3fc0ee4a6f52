#pragma once
// A worker's access to what its loader's cache keeps, file by file: which tier a file is found in,
// and which one it is put into.
#include <optional>
#include <vector>

#include "plan/image_keeper.hpp"
#include "queue/worker_counts.hpp"
#include "worker/cache_control.hpp"
#include "worker/file_store.hpp"

namespace fusionloader {

// The stores of a dataset; null are those that it does not have.
struct CacheStores {
  FileStore *index, *encoded, *decoded, *disk_encoded, *disk_decoded;
  CacheControl* control;

  bool keeps_files() const { return encoded || decoded || disk_encoded || disk_decoded; }
};

class KeptFiles final : public ImageKeeper {
 public:
  explicit KeptFiles(const CacheStores& stores) : stores_(stores) {}

  // Whether files are kept, as bytes or as pixels.
  bool keeps_files() const { return stores_.keeps_files(); }
  // Whether something of the file is kept, current or not.
  bool holds(uint64_t item) const;

  // What is found of a file that has this stamp now: pixels, or encoded bytes, in this order. They
  // are there until the next call.
  struct Found {
    WorkerCount where;
    std::optional<PixelView> pixels;
    ByteView encoded;
  };
  std::optional<Found> find(uint64_t item, FileStamp stamp);
  // Selects the file for the calls below: its stamp when it was read, its bytes, and whether these
  // were read from storage, or are kept already.
  void begin(uint64_t item, FileStamp stamp, ByteView encoded, bool is_kept);
  FileStamp stamp() const { return stamp_; }
  // Whether the pixels were made of all of the image.
  bool tried_pixels() const { return tried_; }
  // Keeps the bytes, unless pixels were kept. True if anything was.
  bool end();

  // Null where nothing is to be measured any more.
  CacheControl* measured() const { return measuring() ? stores_.control : nullptr; }

  bool wants_pixels(int width, int height) override;
  void keep_pixels(const PixelView& image) override;
  void pixels_used(uint64_t ns) override;
  std::optional<EntryIndex> index() override;
  bool wants_index() override;
  void keep_index(EntryIndex index) override;

 private:
  bool measuring() const { return stores_.control && stores_.control->measuring(); }
  bool begin_pixels(size_t bytes);
  bool has_room_for_bytes() const;
  void leave_room_for_indexes();
  std::optional<PixelView> pixels(FileStore* store, uint64_t item);

  CacheStores stores_;
  uint64_t item_ = 0;
  FileStamp stamp_;
  ByteView encoded_{};
  bool is_kept_ = false;
  bool tried_ = false, pixels_kept_ = false;
  FileStore* filling_ = nullptr;  // with pixels
  std::vector<uint8_t> buffer_;   // of what comes from a disk
};

}  // namespace fusionloader
