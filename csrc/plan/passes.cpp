#include "plan/passes.hpp"

#include <stdexcept>
#include <string>

#include "ops/limits.hpp"

namespace fusionloader {
namespace {

constexpr int64_t most_reduced = 1 << 16;  // their sums fit 32 bits

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

bool inside(const Rect& inner, int width, int height) {
  return inner.x >= 0 && inner.y >= 0 && inner.x + inner.width <= width &&
         inner.y + inner.height <= height;
}

bool is_whole(const Rect& rect, int width, int height) {
  return rect.x == 0 && rect.y == 0 && rect.width == width && rect.height == height;
}

void require_side(int width, int height) {
  if (width < 1 || height < 1 || width > longest_side || height > longest_side)
    throw std::invalid_argument("a size of " + std::to_string(width) + " x " +
                                std::to_string(height) + " pixels is not possible");
}

// Pillow takes smaller boxes too; some of their pixels come from nothing.
void require_box(const SourceBox& box, int width, int height) {
  if (!(box.left >= 0 && box.top >= 0 && box.right <= static_cast<float>(width) &&
        box.bottom <= static_cast<float>(height) && box.right - box.left >= 1 &&
        box.bottom - box.top >= 1))
    throw std::invalid_argument("a resize of that part of the image is not possible");
}

void require_size(int width, int height) {
  require_side(width, height);
  require_possible_size(width, height);
}

class Grouping {
 public:
  Grouping(int width, int height) { begin(width, height); }

  std::vector<Pass> finish() {
    passes_.push_back(pass_);
    return std::move(passes_);
  }

  template <class Other>
  void operator()(const Other&) {
    throw std::logic_error("not an operation of a pass");
  }

  void operator()(const CropTo& crop) {
    require_side(crop.width, crop.height);
    if (crop.x < -longest_side || crop.y < -longest_side || crop.x > longest_side ||
        crop.y > longest_side)
      throw std::invalid_argument("a crop that far outside the image is not possible");
    Rect rect{crop.x, crop.y, crop.width, crop.height};
    const Rect& kept = pass_.kept;
    // A flip comes last in a pass: the crop before it is the mirrored one.
    if (pass_.mirrored) rect.x = kept.width - rect.x - rect.width;
    if (pass_.upside_down) rect.y = kept.height - rect.y - rect.height;
    if (inside(rect, kept.width, kept.height)) {
      pass_.kept = {kept.x + rect.x, kept.y + rect.y, rect.width, rect.height};
      return;
    }
    // Only a crop that goes beyond the image takes memory that the image has not had.
    require_possible_size(crop.width, crop.height);
    settle_window();
    if (is_whole(kept, pass_.resized_width, pass_.resized_height)) {
      pass_.kept = rect;
      pass_.fill = crop.fill;
      return;
    }
    begin_after();
    pass_.kept = {crop.x, crop.y, crop.width, crop.height};
    pass_.fill = crop.fill;
  }

  void operator()(const PadBy& by) {
    const Padding& padding = by.padding;
    const Rect& kept = pass_.kept;
    if (by.mode != PadMode::constant)
      throw std::invalid_argument("a border within passes is a constant");
    (*this)(CropTo{-padding.left, -padding.top, kept.width + padding.left + padding.right,
                   kept.height + padding.top + padding.bottom, by.fill});
  }

  void operator()(const ResizeTo& resize) {
    require_size(resize.width, resize.height);
    if (!resize.box && resize.width == pass_.kept.width && resize.height == pass_.kept.height)
      return;
    settle_window();
    if (pass_.resized || !is_plain()) begin_after();
    if (resize.box) require_box(*resize.box, pass_.resized_width, pass_.resized_height);
    pass_.resized = true;
    pass_.box = resize.box;
    pass_.filter = resize.filter;
    pass_.resized_width = resize.width;
    pass_.resized_height = resize.height;
    pass_.kept = {0, 0, resize.width, resize.height};
  }

  void operator()(const ReduceBy& reduce) {
    if (reduce.columns < 1 || reduce.rows < 1 ||
        int64_t{reduce.columns} * reduce.rows > most_reduced)
      throw std::invalid_argument("that many pixels cannot be reduced to one");
    settle_window();
    if (pass_.resized || pass_.is_reduced() || !is_plain()) begin_after();
    pass_.columns = reduce.columns;
    pass_.rows = reduce.rows;
    pass_.resized_width = divide_up(pass_.window.width, reduce.columns);
    pass_.resized_height = divide_up(pass_.window.height, reduce.rows);
    pass_.kept = {0, 0, pass_.resized_width, pass_.resized_height};
  }

  void operator()(const FlipHorizontally&) { pass_.mirrored = !pass_.mirrored; }
  void operator()(const FlipVertically&) { pass_.upside_down = !pass_.upside_down; }

 private:
  void begin(int width, int height) {
    pass_ = Pass{};
    pass_.window = {0, 0, width, height};
    pass_.resized_width = width;
    pass_.resized_height = height;
    pass_.kept = pass_.window;
  }

  void begin_after() {
    const Rect kept = pass_.kept;
    passes_.push_back(pass_);
    begin(kept.width, kept.height);
  }

  // Whether all of the window is kept, as it lies.
  bool is_plain() const {
    return !pass_.mirrored && !pass_.upside_down &&
           is_whole(pass_.kept, pass_.resized_width, pass_.resized_height);
  }

  // Before a resize, what is kept inside the window may as well be the window.
  void settle_window() {
    const Rect& kept = pass_.kept;
    if (pass_.resized || pass_.is_reduced() ||
        !inside(kept, pass_.resized_width, pass_.resized_height))
      return;
    pass_.window = {pass_.window.x + kept.x, pass_.window.y + kept.y, kept.width, kept.height};
    pass_.resized_width = kept.width;
    pass_.resized_height = kept.height;
    pass_.kept = {0, 0, kept.width, kept.height};
  }

  Pass pass_;
  std::vector<Pass> passes_;
};

}  // namespace

std::vector<Pass> group_into_passes(const Parameters& operations, int width, int height) {
  require_side(width, height);  // an image of any area: it is there already
  Grouping grouping(width, height);
  for (const Operation& operation : operations) std::visit(grouping, operation);
  return grouping.finish();
}

}  // namespace fusionloader
