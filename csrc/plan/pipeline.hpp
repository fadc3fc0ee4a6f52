#pragma once
// Runs the operations of one sample from a source of rows to the result: windows, resizes and flips
// in passes over rows, everything else on the whole image.
#include <functional>
#include <vector>

#include "ops/planes.hpp"
#include "plan/augment.hpp"
#include "plan/float_augment.hpp"
#include "plan/images.hpp"
#include "plan/part_times.hpp"
#include "plan/passes.hpp"
#include "resize/float_resampler.hpp"

namespace fusionloader {

// Where the result goes.
class ResultWriter {
 public:
  virtual ~ResultWriter() = default;
  // Gives the sink for the rows of a result of that size.
  virtual RowSink& begin(int width, int height) = 0;
  // Gives the memory of a result that is made of floats, plane by plane.
  virtual float* begin_floats(int width, int height) = 0;
};

class Pipeline {
 public:
  Pipeline(SimdLevel simd, VerticalFirst vertical_first, int channels);

  // The image, shrunk by `denominator`.
  struct Start {
    RowSource& source;
    int denominator;
  };
  // Gets the first pass, which says what of the image is needed.
  using Begin = std::function<Start(const Pass&)>;

  // `width` and `height` are those of the image before it is shrunk. Operations on the converted
  // result are left to the caller. With `tables`, 256 floats for each channel, levels become floats
  // at ToFloats, or at the end. False as soon as the source fails.
  bool run(const Parameters& parameters, int width, int height, const Begin& begin,
           ResultWriter& result, PartTimes& times, const std::vector<float>* tables = nullptr);

  void release_large_buffers();

 private:
  using Operations = Parameters::const_iterator;
  struct FloatPass;

  bool run_levels(Operations first, Operations end, int width, int height, const Begin& begin,
                  ResultWriter& result, PartTimes& times);
  bool run_floats(Operations first, Operations converted, Operations end, int width, int height,
                  const Begin& begin, ResultWriter& result, PartTimes& times,
                  const std::vector<float>& tables);
  bool run_passes(const std::vector<Pass>& passes, const Start& start, int width, int height,
                  RowSink& sink);
  bool run_float_passes(const std::vector<FloatPass>& passes, FloatSource& first, size_t channels,
                        ResultWriter& result);

  SimdLevel simd_;
  Resampler resampler_;
  FloatResampler float_resampler_;
  FloatAugmenter float_augmenter_;
  Augmenter augmenter_;
  int channels_;
  StoredImage stored_[2];
  FloatImage float_images_[2];
  Planes planes_, spare_;  // the image between passes; passes read one and write the other
  Planes levels_;          // what is converted to floats
  std::vector<uint8_t> row_buffer_;
};

}  // namespace fusionloader
