#pragma once
// A worker's access to the stores of its loader, file by file.
#include <optional>

#include "plan/image_keeper.hpp"
#include "worker/file_store.hpp"

namespace fusionloader {

class KeptFiles final : public ImageKeeper {
 public:
  // Null if the loader has no such store.
  KeptFiles(FileStore* pixels, FileStore* indexes) : pixels_(pixels), indexes_(indexes) {}

  // Decoded pixels of a file as it is now.
  std::optional<PixelView> pixels(uint64_t item, const char* path) const;
  // Selects the file for the calls below, with the stamp it had when it was read.
  void begin(uint64_t item, FileStamp stamp);

  bool wants_pixels(int width, int height) override;
  void keep_pixels(const PixelView& image) override;
  std::optional<EntryIndex> index() override;
  bool wants_index() override;
  void keep_index(EntryIndex index) override;

 private:
  FileStore *pixels_, *indexes_;
  uint64_t item_ = 0;
  FileStamp stamp_;
};

}  // namespace fusionloader
