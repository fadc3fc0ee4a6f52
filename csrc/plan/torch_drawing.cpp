// Drawing with torch's generator: torchvision's transforms of Pillow's images, draw by draw.
#include "plan/torch_drawing.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fusionloader {
namespace {

// As in fusionloader/data/deferred/methods.py; Pillow has its own errors for larger images.
constexpr int most_side = 1 << 16;
// torch.exp() of a float32 is at most one unit in the last place (1.2e-7) off.
constexpr double exp_error = 4e-7;

bool is_possible(Size size) {
  return std::min(size.width, size.height) >= 1 && std::max(size.width, size.height) <= most_side;
}

// torch compares with a probability in float32.
bool is_below(double drawn, double probability) {
  return static_cast<float>(drawn) < static_cast<float>(probability);
}

// Whether a stage can be drawn for an image of that size.
class Accepts {
 public:
  explicit Accepts(Size size) : size_(size) {}

  bool operator()(const RandomResizedCrop& stage) const {
    // A smaller image may have no window of that ratio.
    const double least = std::max({1.0, 1.0 / stage.ratio[1], stage.ratio[0]});
    return stage.filters.size() == 1 && is_possible({stage.width, stage.height}) &&
           std::min(size_.width, size_.height) >= least;
  }
  bool operator()(const ResizeStage& stage) const {
    return is_possible({stage.width, stage.height});
  }
  bool operator()(const ResizeShorterSide&) const { return true; }  // its result is looked at
  bool operator()(const CenterCrop& stage) const {
    // Of the size of the image itself, v1 and v2 may differ.
    return stage.width <= size_.width && stage.height <= size_.height &&
           (stage.width != size_.width || stage.height != size_.height);
  }
  bool operator()(const RandomCrop& stage) const {
    // If a side equals that of the crop, v1 and v2 differ in what they draw.
    const bool pads = stage.left || stage.top || stage.right || stage.bottom || stage.pad_if_needed;
    return !pads && stage.width < size_.width && stage.height < size_.height;
  }
  bool operator()(const GaussianBlur& stage) const {
    return stage.kernel_width / 2 < size_.width && stage.kernel_height / 2 < size_.height;
  }
  bool operator()(const RandomHorizontalFlip&) const { return true; }
  bool operator()(const RandomVerticalFlip&) const { return true; }
  bool operator()(const ColorJitter&) const { return true; }
  bool operator()(const Fixed& stage) const {
    return !std::holds_alternative<PadBy>(stage.operation);
  }
  // Its stages keep the size.
  bool operator()(const RandomApply& stage) const {
    return std::all_of(stage.stages.begin(), stage.stages.end(),
                       [&](const StageNode& node) { return std::visit(*this, node.stage); });
  }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }

 private:
  Size size_;
};

class TorchDrawing {
 public:
  TorchDrawing(const TorchTransforms& transforms, TorchEngine& engine, Size size)
      : transforms_(transforms), random_(engine), size_(size) {}

  TorchDrawn run(TorchSizes sizes) {
    size_t done = 0;
    while (done < transforms_.stages.size() && is_within(sizes) && draws(done)) ++done;
    return {std::move(operations_), size_, done, is_new_};
  }

  void operator()(const RandomResizedCrop& stage) {
    is_new_ = true;  // even if nothing was done to the pixels
    crop(random_window(stage));
    resize({stage.width, stage.height}, stage.filters[0]);
  }
  void operator()(const RandomCrop& stage) { crop(random_place({stage.width, stage.height})); }
  void operator()(const RandomHorizontalFlip& stage) {
    if (is_below(random_.uniform(0, 1), stage.probability))
      operations_.push_back(FlipHorizontally{});
  }
  void operator()(const RandomVerticalFlip& stage) {
    if (is_below(random_.uniform(0, 1), stage.probability)) operations_.push_back(FlipVertically{});
  }
  void operator()(const RandomApply& stage) {
    if (!is_below(random_.uniform(0, 1), stage.probability)) return;
    for (const StageNode& node : stage.stages) std::visit(*this, node.stage);
  }
  void operator()(const Fixed& stage) { operations_.push_back(stage.operation); }
  void operator()(const ColorJitter& stage) {
    const auto order = random_.permutation<4>();
    const std::pair<ColorKind, const std::optional<Range>*> factors[] = {
        {ColorKind::brightness, &stage.brightness},
        {ColorKind::contrast, &stage.contrast},
        {ColorKind::saturation, &stage.saturation},
        {ColorKind::hue, &stage.hue}};
    std::array<std::optional<ColorTo>, 4> drawn;
    for (size_t i = 0; i < drawn.size(); ++i)
      if (const auto& [kind, range] = factors[i]; *range)
        drawn[i] = ColorTo{kind, random_.uniform((**range)[0], (**range)[1]),
                           rounds_on_tensors(kind) ? stage.rounding : Rounding::pillow};
    for (const size_t which : order)
      if (drawn[which]) operations_.push_back(*drawn[which]);
  }
  void operator()(const GaussianBlur& stage) {
    const double sigma = random_.uniform(stage.sigma[0], stage.sigma[1]);
    operations_.push_back(
        BlurWith{stage.kernel_width, stage.kernel_height, sigma, sigma, stage.rounding});
  }
  // The others draw nothing.
  template <class Other>
  void operator()(const Other& stage) {
    Drawing drawing(SampleKey{}, size_);
    drawing(stage);
    for (const Operation& operation : drawing.finish())
      if (const auto* resized = std::get_if<ResizeTo>(&operation))
        resize({resized->width, resized->height}, resized->filter);
      else
        crop(std::get<CropTo>(operation));
  }

 private:
  bool is_within(TorchSizes sizes) const {
    return std::min(size_.width, size_.height) >= sizes.least_side &&
           static_cast<double>(size_.width) * size_.height <= sizes.most_pixels;
  }
  // Draws a stage; whether it could.
  bool draws(size_t number) {
    const Stage& stage = transforms_.stages[number].stage;
    if (!std::visit(Accepts(size_), stage)) return false;
    log_ratio_ = transforms_.log_ratios[number];
    const size_t before = operations_.size();
    if (const auto* shorter = std::get_if<ResizeShorterSide>(&stage)) {
      if (!resize_shorter_side(*shorter)) return false;
    } else {
      std::visit(*this, stage);
    }
    is_new_ = is_new_ || operations_.size() > before;
    return true;
  }
  bool resize_shorter_side(const ResizeShorterSide& stage) {
    Drawing drawing(SampleKey{}, size_);
    try {
      drawing(stage);
    } catch (const std::invalid_argument&) {  // torchvision has its own errors
      return false;
    }
    Size size = size_;
    for (const Operation& operation : drawing.finish()) {
      const auto& resized = std::get<ResizeTo>(operation);
      size = {resized.width, resized.height};
    }
    if (!is_possible(size)) return false;
    resize(size, stage.filter);
    return true;
  }
  void crop(const CropTo& window) {
    if (window.width != size_.width || window.height != size_.height) operations_.push_back(window);
    size_ = {window.width, window.height};
  }
  void resize(Size size, Filter filter) {
    if (size.width != size_.width || size.height != size_.height)
      operations_.push_back(ResizeTo{size.width, size.height, filter});
    size_ = size;
  }
  CropTo random_place(Size window) {
    const int y = random_.below(size_.height - window.height + 1);
    const int x = random_.below(size_.width - window.width + 1);
    return {x, y, window.width, window.height, {0, 0, 0}};
  }
  CropTo random_window(const RandomResizedCrop& stage) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double area = static_cast<double>(size_.width) * size_.height *
                          random_.uniform(stage.scale[0], stage.scale[1]);
      const Size window = window_of(area, random_.uniform(log_ratio_[0], log_ratio_[1]));
      if (0 < window.width && window.width <= size_.width && 0 < window.height &&
          window.height <= size_.height)
        return random_place(window);
    }
    // The largest window in the middle whose aspect ratio is in the range.
    const double aspect = static_cast<double>(size_.width) / size_.height;
    int width = size_.width, height = size_.height;
    if (aspect < stage.ratio[0])
      height = round_half_even(width / stage.ratio[0]);
    else if (aspect > stage.ratio[1])
      width = round_half_even(height * stage.ratio[1]);
    return {(size_.width - width) / 2, (size_.height - height) / 2, width, height, {0, 0, 0}};
  }
  // The sides of a window, which hardly ever depend on the last bits of torch's exponential.
  Size window_of(double area, double log_aspect) const {
    const auto sides = [&](double aspect) {
      return Size{round_half_even(std::sqrt(area * aspect)),
                  round_half_even(std::sqrt(area / aspect))};
    };
    const double aspect = std::exp(log_aspect);
    const Size narrowest = sides(aspect * (1.0 - exp_error));
    const Size widest = sides(aspect * (1.0 + exp_error));
    if (narrowest.width == widest.width && narrowest.height == widest.height) return widest;
    return sides(transforms_.exp(log_aspect));
  }

  const TorchTransforms& transforms_;
  TorchRandom random_;
  Size size_;
  Range log_ratio_{};
  Parameters operations_;
  bool is_new_ = false;
};

}  // namespace

TorchDrawn draw_as_torch(const TorchTransforms& transforms, TorchEngine& engine, Size size,
                         TorchSizes sizes) {
  return TorchDrawing(transforms, engine, size).run(sizes);
}

}  // namespace fusionloader
