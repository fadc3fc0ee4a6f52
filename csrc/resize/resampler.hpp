#pragma once
// One pass over an image: take a window, reduce it, resize it, keep a part of the result, mirror
// it; row by row, so that neither the window nor the resized image is ever stored whole.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "image/rows.hpp"
#include "ops/interleave.hpp"
#include "ops/planes.hpp"
#include "resize/kernels.hpp"
#include "resize/reducing.hpp"
#include "resize/weights.hpp"

namespace fusionloader {

struct Pass {
  Rect window;                // of the source image, inside it
  int columns = 1, rows = 1;  // pixels of the window that are reduced to one
  bool resized = false;
  int resized_width, resized_height;
  std::optional<SourceBox> box;  // what is resized of the reduced window; none: all of it
  Filter filter = Filter::bilinear;
  Rect kept;  // of the resized image; what lies outside it becomes `fill`
  Color fill{};
  bool mirrored = false, upside_down = false;

  bool is_reduced() const { return columns > 1 || rows > 1; }
};

class Resampler {
 public:
  Resampler(SimdLevel simd, VerticalFirst vertical_first);

  // `source` is the image that `pass` speaks of, shrunk by `denominator`, `source_width` x
  // `source_height` pixels after that. A pass that reduces or has a box takes no shrunk image.
  // False as soon as the source fails.
  bool run(const Pass& pass, int denominator, int source_width, int source_height,
           RowSource& source, RowSink& sink);

  void release_large_buffers();

 private:
  bool rows_first(RowSource& source);
  bool columns_first(RowSource& source);
  bool emit_as_is(RowSource& source);
  bool resize_rows(RowSource& source, int ready, int count);
  void resize_column_step(int y, uint8_t* out, size_t bytes);
  void emit(int row, const uint8_t* pixels);
  void emit_surroundings();
  uint8_t* ring_row(int row) {
    return &ring_[static_cast<size_t>(row & ring_mask_) * ring_stride_];
  }
  void size_ring(size_t row_bytes);

  const ResizeKernels& kernels_;
  const InterleaveKernels& interleave_;
  VerticalFirst vertical_first_;
  Weights x_weights_, y_weights_;
  HorizontalTaps x_taps_;
  ReducingSource reducing_;

  // Of the pass under way.
  const Pass* pass_ = nullptr;
  RowSink* sink_ = nullptr;
  bool resize_x_ = false, resize_y_ = false;
  int inner_x_ = 0, inner_y_ = 0, inner_width_ = 0, inner_height_ = 0;  // real pixels in the result
  size_t source_columns_ = 0;
  size_t plane_ = 0, framed_plane_ = 0;
  int ring_mask_ = 0;
  size_t ring_stride_ = 0;
  // Rows of RGBX: those that the vertical pass still needs, those that one pass left for the next.
  std::vector<uint8_t> ring_, tall_rows_, result_rows_;
  std::vector<uint8_t> planes_, framed_;
  std::vector<const uint8_t*> ring_rows_;
};

}  // namespace fusionloader
