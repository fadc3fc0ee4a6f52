#pragma once
// Runs the operations of one sample from a source of rows to the result: windows, resizes and flips
// in passes over rows, everything else on the whole image.
#include <functional>
#include <vector>

#include "ops/planes.hpp"
#include "plan/augment.hpp"
#include "plan/images.hpp"
#include "plan/part_times.hpp"
#include "plan/passes.hpp"

namespace fusionloader {

// Where the result goes.
class ResultWriter {
 public:
  virtual ~ResultWriter() = default;
  // Gives the sink for the rows of a result of that size.
  virtual RowSink& begin(int width, int height) = 0;
};

class Pipeline {
 public:
  Pipeline(SimdLevel simd, bool vertical_first_allowed, int channels);

  // The image, shrunk by `denominator`.
  struct Start {
    RowSource& source;
    int denominator;
  };
  // Gets the first pass, which says what of the image is needed.
  using Begin = std::function<Start(const Pass&)>;

  // `width` and `height` are those of the image before it is shrunk. Operations on the converted
  // result are left to the caller. False as soon as the source fails.
  bool run(const Parameters& parameters, int width, int height, const Begin& begin,
           ResultWriter& result, PartTimes& times);

  void release_large_buffers();

 private:
  bool run_passes(const std::vector<Pass>& passes, const Start& start, int width, int height,
                  RowSink& sink);

  SimdLevel simd_;
  Resampler resampler_;
  Augmenter augmenter_;
  int channels_;
  StoredImage stored_[2];
  Planes planes_, spare_;  // the image between passes; passes read one and write the other
  std::vector<uint8_t> row_buffer_;
};

}  // namespace fusionloader
