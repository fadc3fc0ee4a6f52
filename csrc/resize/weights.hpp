#pragma once
// The weights of one axis of a resize, as Pillow or torch computes them.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arithmetic/weighing.hpp"
#include "resize/filter.hpp"

namespace fusionloader {

// What a resize of one axis reads: `in_size` pixels of which the `in_length` from `in_begin` on
// become `out_size`, and the outputs [keep_begin, keep_begin + keep_count) that are wanted, in
// reverse if `mirrored`.
struct Axis {
  int in_size;
  double in_begin, in_length;
  int out_size;
  int keep_begin, keep_count;
  bool mirrored;
};

inline bool is_vertical_first(VerticalFirst when, Filter filter, const Axis& across,
                              const Axis& down) {
  const int fewer_rows = down.in_size - down.out_size;
  if (when == VerticalFirst::never || is_torchs(filter) || fewer_rows <= 0) return false;
  if (when == VerticalFirst::tall) return down.in_size > int64_t{100} * across.in_size;
  return fewer_rows > 2 * (across.in_size - across.out_size);
}

class Weights {
 public:
  void compute(Filter filter, const Axis& axis);
  // The same inputs one by one: output i is input keep_begin + i.
  void compute_identity(const Axis& axis);

  int outputs() const { return outputs_; }
  int first(int output) const { return first_[static_cast<size_t>(output)]; }
  int count(int output) const { return count_[static_cast<size_t>(output)]; }
  const int32_t* taps(int output) const { return &taps_[static_cast<size_t>(output) * stride_]; }
  int most_taps() const { return most_taps_; }
  // The inputs that any output needs.
  int inputs_begin() const { return inputs_begin_; }
  int inputs_end() const { return inputs_end_; }

 private:
  template <class Kernel>
  void fill(Kernel kernel, double support, const Axis& axis);
  template <class Kernel>
  void fill_as_torch(Kernel kernel, double support, const Axis& axis);
  void prepare(int outputs, size_t stride);
  void find_extent();

  int outputs_ = 0, most_taps_ = 0, inputs_begin_ = 0, inputs_end_ = 0;
  size_t stride_ = 0;
  std::vector<int> first_, count_;
  std::vector<int32_t> taps_;
  std::vector<double> exact_;
};

}  // namespace fusionloader
