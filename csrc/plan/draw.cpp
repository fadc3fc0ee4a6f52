// Drawing: which stages run, and those that change colors or warp. torchvision's get_params.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "ops/limits.hpp"
#include "ops/matrices.hpp"
#include "ops/perspective.hpp"
#include "plan/drawing.hpp"

namespace fusionloader {
namespace {

// A permutation of 0 .. count - 1, all equally likely.
std::vector<size_t> permutation(size_t count, Stream& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = count; i > 1; --i)
    std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
  return order;
}

// torch draws these as float32.
double uniform_float(const Range& range, Stream& random) {
  return static_cast<float>(random.uniform(range[0], range[1]));
}

// Of a matrix for tensors: as pixels from the middle of the image.
Point centre_on_tensors(const std::optional<Point>& centre, Size size) {
  if (!centre) return {0, 0};
  return {centre->x - size.width * 0.5, centre->y - size.height * 0.5};
}

}  // namespace

Parameters draw(const PlanSpec& plan, const SampleKey& key, int width, int height,
                std::vector<size_t>* stage_ends) {
  if (width <= 0 || height <= 0) throw std::invalid_argument("an image has at least one pixel");
  if (stage_ends) stage_ends->clear();
  if (width > longest_side || height > longest_side)
    throw std::invalid_argument("an image that large is not possible");
  Drawing drawing(key, {width, height});
  int before = 0;
  for (const StageNode& node : plan.stages) {
    if (before == plan.tensor_from) drawing.make_tensor();
    if (before == plan.copied_from) drawing.copy_tensor();
    ++before;
    drawing.run(node);
    if (stage_ends) stage_ends->push_back(drawing.count());
  }
  return drawing.finish();
}

void Drawing::add(Operation operation) {
  auto* color = std::get_if<ColorTo>(&operation);
  const auto* floats = std::get_if<ToFloats>(&operation);
  const bool copies = std::holds_alternative<FlipHorizontally>(operation) ||
                      std::holds_alternative<FlipVertically>(operation) ||
                      std::holds_alternative<NormalizeBy>(operation) ||
                      std::holds_alternative<MixOf>(operation) ||
                      (color && color->kind != ColorKind::hue &&
                       color->kind != ColorKind::equalize && color->kind != ColorKind::grayscale);
  if (color && color->kind == ColorKind::contrast && color->rounding == Rounding::torch_v2 &&
      memory_ != Memory::planar)
    color->rounding = Rounding::torch_v2_interleaved;
  const bool v1_hue =
      color && color->kind == ColorKind::hue && color->rounding == Rounding::torch_v1;
  on_floats_ = on_floats_ || floats;
  if (v1_hue)
    make_tensor();
  else if (copies)
    copy_tensor();
  else if (!floats || floats->layout == Layout::planar)
    memory_ = Memory::planar;
  operations_.push_back(std::move(operation));
}

void Drawing::run(const std::vector<StageNode>& stages) {
  for (const StageNode& node : stages) run(node);
}

void Drawing::run(const StageNode& node) {
  number_ = node.number;
  std::visit(*this, node.stage);
}

void Drawing::operator()(const RandomApply& stage) {
  if (shared_stream().uniform() < stage.probability) run(stage.stages);
}

void Drawing::operator()(const RandomChoice& stage) {
  Stream random = shared_stream();
  run(stage.branches[draw_weighted(stage.weights, random)]);
}

void Drawing::operator()(const RandomOrder& stage) {
  Stream random = shared_stream();
  for (const size_t branch : permutation(stage.branches.size(), random))
    run(stage.branches[branch]);
}

void Drawing::operator()(const Fixed& stage) {
  add(stage.operation);
  if (const auto* pad = std::get_if<PadBy>(&stage.operation))
    size_ = {size_.width + pad->padding.left + pad->padding.right,
             size_.height + pad->padding.top + pad->padding.bottom};
  if (size_.width < 1 || size_.height < 1)
    throw std::invalid_argument("padding leaves nothing of the image");
  if (size_.width > longest_side || size_.height > longest_side)
    throw std::invalid_argument("padding that wide is not possible");
}

void Drawing::operator()(const ColorJitter& stage) {
  Stream random = shared_stream();
  const std::pair<ColorKind, const std::optional<Range>*> factors[] = {
      {ColorKind::brightness, &stage.brightness},
      {ColorKind::contrast, &stage.contrast},
      {ColorKind::saturation, &stage.saturation},
      {ColorKind::hue, &stage.hue}};
  const std::vector<size_t> order = permutation(std::size(factors), random);
  for (const size_t which : order) {
    const auto& [kind, range] = factors[which];
    if (!*range) continue;
    const bool rounds =
        rounds_on_tensors(kind) || (on_floats_ && stage.rounding == Rounding::torch_v1);
    const Rounding rounding = rounds ? stage.rounding : Rounding::pillow;
    add(ColorTo{kind, uniform_float(**range, random), rounding});
  }
}

void Drawing::operator()(const GaussianBlur& stage) {
  Stream random = shared_stream();
  const double sigma = uniform_float(stage.sigma, random);
  add(BlurWith{stage.kernel_width, stage.kernel_height, sigma, sigma, stage.rounding});
}

void Drawing::operator()(const RandomRotation& stage) {
  Stream random = shared_stream();
  const double angle = uniform_float(stage.degrees, random), turned = whole_turn_remainder(angle);
  const bool v1 = is_v1(stage.rounding);
  // Torchvision's v2 and Pillow turn without arithmetic, so that no rounding adds to the sides.
  const bool quarters = !v1 && !stage.centre && std::fmod(turned, 90.0) == 0.0;
  Size size = size_;
  if (quarters && std::fmod(turned, 180.0) != 0.0) std::swap(size.width, size.height);
  if (stage.rounding != Rounding::pillow) {
    const Point centre = centre_on_tensors(stage.centre, size_);
    const AffineMatrix matrix =
        inverse_affine_matrix(centre, v1 ? -angle : -turned, {0, 0}, 1, {0, 0});
    AffineWith turn{matrix, stage.interpolation, stage.fill, stage.rounding};
    const bool moves =
        std::fmod(turned, 180.0) == 0.0 || stage.expand || size_.width == size_.height;
    if (on_floats_ && quarters && moves) turn.interpolation = Interpolation::nearest;
    if (stage.expand) {
      if (!quarters) turned_tensor_size(matrix, stage.rounding, size.width, size.height);
      turn.size = {size.width, size.height};
      size_ = size;
    }
    const Memory before = memory_;
    add(turn);
    if (quarters && std::fmod(turned, 180.0) == 0.0) {
      memory_ = before;
      copy_tensor();
    }
    return;
  }
  add(RotateBy{angle, stage.interpolation, stage.expand, stage.centre, stage.fill});
  if (!stage.expand) return;
  const Point centre = stage.centre.value_or(Point{size_.width / 2.0, size_.height / 2.0});
  if (!quarters) rotation_matrix(turned, centre, true, size.width, size.height);
  size_ = size;
}

void Drawing::operator()(const RandomAffine& stage) {
  Stream random = shared_stream();
  const double angle = uniform_float(stage.degrees, random);
  Point translation{}, shear{};
  if (stage.translate) {
    const double most_x = (*stage.translate)[0] * size_.width;
    const double most_y = (*stage.translate)[1] * size_.height;
    translation.x = round_half_even(uniform_float({-most_x, most_x}, random));
    translation.y = round_half_even(uniform_float({-most_y, most_y}, random));
  }
  const double scale = stage.scale ? uniform_float(*stage.scale, random) : 1.0;
  if (stage.shear_x) shear.x = uniform_float(*stage.shear_x, random);
  if (stage.shear_y) shear.y = uniform_float(*stage.shear_y, random);
  const Point centre = stage.rounding != Rounding::pillow
                           ? centre_on_tensors(stage.centre, size_)
                           : stage.centre.value_or(Point{size_.width * 0.5, size_.height * 0.5});
  const AffineMatrix matrix = inverse_affine_matrix(centre, angle, translation, scale, shear);
  add(AffineWith{matrix, stage.interpolation, stage.fill, stage.rounding});
}

void Drawing::operator()(const RandomPerspective& stage) {
  Stream random = shared_stream();
  const int width = size_.width, height = size_.height;
  const int reach_x = static_cast<int>(stage.distortion * (width / 2)) + 1;
  const int reach_y = static_cast<int>(stage.distortion * (height / 2)) + 1;
  const auto near_start = [&](int reach) {
    return static_cast<double>(random.below(static_cast<uint32_t>(reach)));
  };
  const auto near_end = [&](int side, int reach) { return side - reach + near_start(reach); };
  const Corners start{{{0, 0}, {width - 1.0, 0}, {width - 1.0, height - 1.0}, {0, height - 1.0}}};
  Corners end{};
  end[0] = {near_start(reach_x), near_start(reach_y)};
  end[1] = {near_end(width, reach_x), near_start(reach_y)};
  end[2] = {near_end(width, reach_x), near_end(height, reach_y)};
  end[3] = {near_start(reach_x), near_end(height, reach_y)};
  add(PerspectiveWith{perspective_coefficients(start, end), stage.interpolation, stage.fill,
                      stage.rounding});
}

void Drawing::operator()(const RandomErasing& stage) {
  Stream random = stream();
  if (random.uniform() >= stage.probability) return;
  const auto extra = static_cast<uint32_t>(stage.most_boxes - stage.least_boxes);
  const int boxes = stage.least_boxes + (extra ? static_cast<int>(random.below(extra + 1)) : 0);
  const double area = static_cast<double>(size_.width) * size_.height / boxes;
  const double log_low = std::log(stage.ratio[0]), log_high = std::log(stage.ratio[1]);
  for (int box = 0; box < boxes; ++box) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = area * random.uniform(stage.scale[0], stage.scale[1]);
      const double ratio = std::exp(random.uniform(log_low, log_high));
      const double exact_height = std::sqrt(target * ratio);
      const double exact_width = std::sqrt(target / ratio);
      if (!(exact_height <= size_.height && exact_width <= size_.width)) continue;
      const int height = round_half_even(exact_height), width = round_half_even(exact_width);
      if (!(height < size_.height && width < size_.width)) continue;
      const uint64_t noise = static_cast<uint64_t>(random.next_u32()) << 32 | random.next_u32();
      const int y =
          static_cast<int>(random.below(static_cast<uint32_t>(size_.height - height + 1)));
      const int x = static_cast<int>(random.below(static_cast<uint32_t>(size_.width - width + 1)));
      if (width > 0 && height > 0)
        add(EraseResult{x, y, width, height, stage.values, stage.noise_per_pixel, noise});
      break;
    }
  }
}

void Drawing::operator()(const RandomPolicy& stage) {
  Stream random = shared_stream();
  Parameters drawn;
  draw_policy(stage, random, size_, drawn);
  for (Operation& operation : drawn) add(std::move(operation));
}

}  // namespace fusionloader
