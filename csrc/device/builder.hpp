#pragma once
// Flattens the operations of samples into a batch's program: what depends on parameters alone is
// worked out here, so that the device only runs steps.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/program.hpp"
#include "plan/augment.hpp"
#include "plan/program.hpp"
#include "resize/resampler.hpp"

namespace fusionloader::device {

// The name of the first operation that no program can do; nothing where there is none.
std::optional<std::string> unsupported(const Parameters& operations);

// 8 bit, height x width x the plan's channels, in whatever memory the program will run on.
struct ImageAt {
  uint64_t address;
  int width, height;
};

// Not thread-safe. Memory is kept from batch to batch.
class BatchBuilder {
 public:
  static constexpr size_t alignment = 16;  // of a block, and of what is in it
  // Where the conversion's table is: in the block's data, or given to the kernel.
  enum class Table { in_block, elsewhere };
  // For the plan's images, its conversion and the size of its result.
  explicit BatchBuilder(const PlanSpec& plan, Table table = Table::in_block);

  void clear();
  // Adds a sample whose result is written to address `out`. Throws std::invalid_argument for what
  // the native executor refuses and for what no program can do, and adds nothing then.
  void add(const Parameters& operations, const ImageAt& image, uint64_t out);

  uint32_t samples() const { return static_cast<uint32_t>(records_.size()); }
  // Of the last sample's result.
  int width() const { return width_; }
  int height() const { return height_; }
  size_t result_bytes() const;

  // Of the block, and of the working memory that its samples need.
  size_t bytes() const;
  size_t work_bytes() const { return work_; }
  // `to` has room for bytes() and begins at a multiple of 16.
  void write(uint8_t* to) const;

 private:
  struct Marks {
    size_t steps, erasures, data;
  };
  void add_steps(const Parameters& operations, Record& record);
  void add_windows(const std::vector<Pass>& passes, Step* way_in);
  Pass add_resize(const Pass& pass, Step* way_in);
  ResizeAxis add_axis(Filter filter, const Axis& axis, int& first_input);
  void add_operation(const Operation& operation);
  void add_color(const ColorTo& color);
  void add_table(const Operation& operation);
  void add_affine(const double* matrix, Interpolation interpolation, const Color& fill,
                  int out_width, int out_height);
  void add_rotation(const RotateBy& turn);
  void add_border(const PadBy& padding);
  void add_gaussian(const BlurWith& blur);
  void add_erased(const EraseBox& box);
  void add_erasure(const EraseResult& box);
  std::vector<uint8_t> noise_of(const EraseResult& box) const;
  void require_result_size() const;

  // A new step, or the given way in.
  Step& add_step(StepKind kind, int width, int height, Step* way_in = nullptr);
  Step& add_step(StepKind kind) { return add_step(kind, width_, height_); }
  void add_blend(StepKind kind, double factor);
  // Returns where the bytes begin in the data.
  uint32_t add_data(const void* bytes, size_t count);
  uint32_t packed_fill(const Color& fill) const;

  PlanSpec plan_;
  Conversion conversion_{};
  size_t conversion_bytes_ = 0;  // that the data begins with
  std::vector<Record> records_;
  std::vector<Step> steps_;
  std::vector<Erasure> erasures_;
  std::vector<uint8_t> data_;
  size_t work_ = 0;
  Augmenter augmenter_{SimdLevel::scalar};
  Planes levels_;
  Weights weights_;
  std::vector<int32_t> packed_weights_;

  // Of the sample that is being added.
  int width_ = 0, height_ = 0;
  size_t first_step_ = 0, most_pixels_ = 0, extra_ = 0;
};

}  // namespace fusionloader::device
