// Drawing of augmentation policies: RandAugment, AutoAugment, TrivialAugment, AugMix and similar.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "ops/matrices.hpp"
#include "plan/drawing.hpp"
#include "rng/normal.hpp"

namespace fusionloader {
namespace {

// Element `place` of torch.linspace(0, end, bins): float32, from the nearer end.
double linspace(double end, int bins, int place) {
  const auto last = static_cast<float>(end);
  if (bins == 1) return 0.0;
  const float step = last / static_cast<float>(bins - 1);
  if (place < bins / 2) return step * static_cast<float>(place);
  return last - step * static_cast<float>(bins - place - 1);
}

double draw_level(const Magnitude& magnitude, Stream& random) {
  const std::vector<double>& levels = magnitude.levels;
  switch (magnitude.source) {
    case Magnitude::Source::normal:
      return std::clamp(levels[0] + levels[1] * normal(random), magnitude.clip[0],
                        magnitude.clip[1]);
    case Magnitude::Source::uniform:
      return std::clamp(random.uniform(levels[0], levels[1]), magnitude.clip[0], magnitude.clip[1]);
    case Magnitude::Source::listed:
      break;
  }
  if (levels.size() == 1) return levels[0];
  return levels[random.below(static_cast<uint32_t>(levels.size()))];
}

double draw_magnitude(const Magnitude& magnitude, Stream& random, Size size) {
  double level = draw_level(magnitude, random);
  double scale = magnitude.scale, side = 1.0;
  if (magnitude.relative_to != Magnitude::RelativeTo::nothing)
    side = magnitude.relative_to == Magnitude::RelativeTo::width ? size.width : size.height;
  if (magnitude.bins > 0) {
    level = linspace(scale * side, magnitude.bins,
                     static_cast<int>(std::clamp(level, 0.0, magnitude.bins - 1.0)));
    scale = side = 1.0;
  }
  if (magnitude.either_sign && random.below(2) == 1) level = -level;
  const double scaled = scale * level * side;
  return std::clamp(magnitude.offset + (magnitude.truncate ? std::trunc(scaled) : scaled),
                    magnitude.bounds[0], magnitude.bounds[1]);
}

std::optional<ColorKind> color_kind(PolicyOp op) {
  switch (op) {
    case PolicyOp::brightness:
      return ColorKind::brightness;
    case PolicyOp::contrast:
      return ColorKind::contrast;
    case PolicyOp::saturation:
      return ColorKind::saturation;
    case PolicyOp::sharpness:
      return ColorKind::sharpness;
    case PolicyOp::posterize:
      return ColorKind::posterize;
    case PolicyOp::solarize:
      return ColorKind::solarize;
    case PolicyOp::solarize_add:
      return ColorKind::solarize_add;
    case PolicyOp::invert:
      return ColorKind::invert;
    case PolicyOp::autocontrast:
      return ColorKind::autocontrast;
    case PolicyOp::equalize:
      return ColorKind::equalize;
    default:
      return std::nullopt;
  }
}

AffineMatrix policy_matrix(PolicyOp op, double value, Size size) {
  switch (op) {
    case PolicyOp::shear_x:
      return shear_x_matrix(value);
    case PolicyOp::shear_y:
      return shear_y_matrix(value);
    case PolicyOp::translate_x:
      return translate_x_matrix(value, size.width, size.height);
    case PolicyOp::translate_y:
      return translate_y_matrix(value, size.width, size.height);
    case PolicyOp::skew_x:
      return plain_shear_x_matrix(value);
    case PolicyOp::skew_y:
      return plain_shear_y_matrix(value);
    case PolicyOp::shift_x:
      return plain_translate_x_matrix(value);
    case PolicyOp::shift_y:
      return plain_translate_y_matrix(value);
    default:
      throw std::logic_error("not an affine operation");
  }
}

AffineMatrix tensor_policy_matrix(PolicyOp op, double value, Size size) {
  switch (op) {
    case PolicyOp::shear_x:
      return tensor_shear_matrix({value, 0}, size.width, size.height);
    case PolicyOp::shear_y:
      return tensor_shear_matrix({0, value}, size.width, size.height);
    case PolicyOp::translate_x:
      return tensor_translation_matrix({value, 0});
    case PolicyOp::translate_y:
      return tensor_translation_matrix({0, value});
    case PolicyOp::rotate:
      return inverse_affine_matrix({0, 0}, -value, {0, 0}, 1, {0, 0});
    default:
      throw std::invalid_argument("a policy for tensors has torchvision's operations alone");
  }
}

// DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout"
// (2017): the square's centre is anywhere, so that part of it may lie outside the image.
void cut_out(double part, Stream& random, Size size, Color fill, Parameters& operations) {
  const int half = round_half_even(part * std::min(size.width, size.height)) / 2;
  const int x = static_cast<int>(random.below(static_cast<uint32_t>(size.width)));
  const int y = static_cast<int>(random.below(static_cast<uint32_t>(size.height)));
  const int left = std::max(x - half, 0), top = std::max(y - half, 0);
  const int right = std::min(x + half, size.width), bottom = std::min(y + half, size.height);
  if (left < right && top < bottom)
    operations.push_back(EraseBox{left, top, right - left, bottom - top, fill});
}

// Whether a turn by 0 degrees leaves a tensor as it lies in memory, as v2's does.
bool copies_unturned(Rounding rounding) { return is_v2(rounding) || is_unfilled(rounding); }

void draw_step(const PolicyStep& step, const RandomPolicy& policy, Stream& random, Size size,
               Parameters& operations) {
  if (step.probability < 1.0 && random.uniform() >= step.probability) return;
  if (step.op == PolicyOp::identity) return;
  if (step.op == PolicyOp::hflip) {
    operations.push_back(FlipHorizontally{});
    return;
  }
  const double value = draw_magnitude(step.magnitude, random, size);
  if (const auto kind = color_kind(step.op)) {
    const bool whole = step.op == PolicyOp::posterize;
    const Rounding rounding = rounds_on_tensors(*kind) ? policy.rounding : Rounding::pillow;
    // Torch compares the levels of tensors with a threshold in float32.
    const bool single = step.op == PolicyOp::solarize && policy.rounding != Rounding::pillow;
    operations.push_back(ColorTo{*kind,
                                 whole    ? std::trunc(value)
                                 : single ? static_cast<float>(value)
                                          : value,
                                 rounding});
    return;
  }
  if (step.op == PolicyOp::cutout) return cut_out(value, random, size, policy.fill, operations);
  if (step.op == PolicyOp::box_blur || step.op == PolicyOp::box_blur_up_to) {
    const bool drawn = step.op == PolicyOp::box_blur_up_to;
    operations.push_back(BoxBlurWith{drawn ? random.uniform(0.1, 2.0 * value) : value});
    return;
  }
  if (step.op == PolicyOp::rotate && value == 0.0 && copies_unturned(policy.warp_rounding)) return;
  const auto count = static_cast<uint32_t>(policy.interpolations.size());
  const Interpolation interpolation = policy.interpolations[count > 1 ? random.below(count) : 0];
  if (policy.warp_rounding != Rounding::pillow)
    operations.push_back(AffineWith{tensor_policy_matrix(step.op, value, size), interpolation,
                                    policy.fill, policy.warp_rounding});
  else if (step.op == PolicyOp::rotate)
    operations.push_back(RotateBy{value, interpolation, false, std::nullopt, policy.fill});
  else
    operations.push_back(
        AffineWith{policy_matrix(step.op, value, size), interpolation, policy.fill});
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double gamma(double shape, Stream& random) {
  if (shape < 1.0)
    return gamma(shape + 1.0, random) * std::pow(1.0 - random.uniform(), 1.0 / shape);
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal(random), cube = 1.0 + c * x;
    if (cube <= 0.0) continue;
    const double v = cube * cube * cube;
    if (std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

// Symmetric: every one of `count` parameters is `alpha`.
std::vector<double> dirichlet(double alpha, int count, Stream& random) {
  std::vector<double> parts(static_cast<size_t>(count));
  double sum = 0.0;
  for (double& part : parts) sum += part = gamma(alpha, random);
  // With a tiny alpha all may be too small to tell from 0: one of them then gets the whole weight.
  if (sum > 0.0)
    for (double& part : parts) part /= sum;
  else
    parts[random.below(static_cast<uint32_t>(count))] = 1.0;
  return parts;
}

// Weights that, blended one after the other, give each chain its share: timm's, in float32.
void make_successive(MixOf& mix, float share_of_chains) {
  float left = 1.0f;
  for (size_t i = mix.weights.size(); i-- > 0;) {
    const float part = left > 0.0f ? std::min(mix.weights[i] * share_of_chains / left, 1.0f) : 0.0f;
    left *= 1.0f - part;
    mix.weights[i] = part;
  }
}

}  // namespace

size_t draw_weighted(const std::vector<double>& weights, Stream& random) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = random.uniform() * total;
  size_t chosen = weights.size();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0.0)) continue;
    chosen = i;  // the last possible one where rounding leaves nothing
    if (left < weights[i]) break;
    left -= weights[i];
  }
  if (chosen == weights.size()) throw std::invalid_argument("nothing is left to choose from");
  return chosen;
}

void draw_policy(const RandomPolicy& policy, Stream& random, Size size, Parameters& operations) {
  const auto count = static_cast<uint32_t>(policy.policies.size());
  std::vector<double> weights = policy.weights;
  for (int i = 0; i < policy.repeats; ++i) {
    const size_t chosen = weights.empty() ? random.below(count) : draw_weighted(weights, random);
    if (policy.distinct) weights[chosen] = 0.0;
    for (const PolicyStep& step : policy.policies[chosen])
      draw_step(step, policy, random, size, operations);
  }
}

Parameters Drawing::draw_chain(const RandomPolicy& policy, int steps, Stream& random) const {
  Parameters drawn;
  for (int i = 0; i < steps; ++i) draw_policy(policy, random, size_, drawn);
  Drawing chain(key_, size_);
  chain.memory_ = memory_;
  for (Operation& operation : drawn) chain.add(std::move(operation));
  return chain.finish();
}

void Drawing::operator()(const AugMix& stage) {
  Stream random = shared_stream();
  const std::vector<double> beta = dirichlet(stage.alpha, 2, random);
  const std::vector<double> weights = dirichlet(stage.alpha, stage.width, random);
  const auto of_image = static_cast<float>(beta[0]), of_chains = static_cast<float>(beta[1]);
  const bool sum = stage.mixing == Mixing::sum;
  MixOf mix{sum ? of_image : of_chains, {}, {}, stage.mixing};
  for (const double weight : weights) {
    mix.weights.push_back(static_cast<float>(weight) * (sum ? of_chains : 1.0f));
    const int depth = stage.depth > 0 ? stage.depth : 1 + static_cast<int>(random.below(3));
    mix.chains.push_back(draw_chain(stage.operations, depth, random));
  }
  if (stage.mixing == Mixing::successive) make_successive(mix, of_chains);
  add(std::move(mix));
}

}  // namespace fusionloader
