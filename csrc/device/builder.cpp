#include "device/builder.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "arithmetic/sampling.hpp"
#include "ops/limits.hpp"
#include "plan/passes.hpp"
#include "rng/normal.hpp"

namespace fusionloader::device {
namespace {

size_t aligned(size_t bytes) {
  constexpr size_t alignment = BatchBuilder::alignment;
  return (bytes + alignment - 1) / alignment * alignment;
}

template <class Item>
size_t bytes_of(const std::vector<Item>& items) {
  return aligned(items.size() * sizeof(Item));
}

template <class Item>
uint32_t put(const std::vector<Item>& items, uint8_t* block, size_t& at) {
  const size_t begin = at;
  if (!items.empty()) std::memcpy(block + begin, items.data(), items.size() * sizeof(Item));
  at += bytes_of(items);
  return static_cast<uint32_t>(begin);
}

WindowStep window_of(const Pass& pass, uint32_t fill) {
  return {pass.window.x, pass.window.y, pass.window.width, pass.window.height, pass.kept.x,
          pass.kept.y,   fill,          pass.mirrored,     pass.upside_down};
}

// The part of the resized image that a pass keeps; no width where there is none.
Rect overlap(const Pass& pass) {
  const Rect& kept = pass.kept;
  const int left = std::max(kept.x, 0), top = std::max(kept.y, 0);
  const int right = std::min(kept.x + kept.width, pass.resized_width);
  const int bottom = std::min(kept.y + kept.height, pass.resized_height);
  if (right <= left || bottom <= top) return {};
  return {left, top, right - left, bottom - top};
}

bool changes_nothing(const Pass& pass, int width, int height) {
  const auto whole = [&](const Rect& rect) {
    return rect.x == 0 && rect.y == 0 && rect.width == width && rect.height == height;
  };
  return !pass.mirrored && !pass.upside_down && whole(pass.window) && whole(pass.kept);
}

}  // namespace

std::optional<std::string> unsupported(const Parameters& operations) {
  for (const Operation& operation : operations) {
    if (std::holds_alternative<MixOf>(operation)) return "mix";
    if (std::holds_alternative<ReduceBy>(operation)) return "reduce";
    if (std::holds_alternative<LookUp>(operation)) return "lookup";
    if (std::holds_alternative<SelectChannels>(operation)) return "channels";
    const auto* resize = std::get_if<ResizeTo>(&operation);
    if (resize && resize->box) return "resize of a box";
    const auto* color = std::get_if<ColorTo>(&operation);
    const auto* affine = std::get_if<AffineWith>(&operation);
    const auto* perspective = std::get_if<PerspectiveWith>(&operation);
    const auto* blur = std::get_if<BlurWith>(&operation);
    if ((color && color->rounding != Rounding::pillow) ||
        (affine && affine->rounding != Rounding::pillow) ||
        (perspective && perspective->rounding != Rounding::pillow) ||
        (blur && blur->rounding != Rounding::pillow))
      return "rounding as on tensors";
    const auto* erase = std::get_if<EraseResult>(&operation);
    if (erase && erase->values.empty() && erase->noise_per_pixel) return "erase with noise";
  }
  return std::nullopt;
}

BatchBuilder::BatchBuilder(const PlanSpec& plan, Table table) : plan_(plan) {
  conversion_.channels = plan.result_channels;
  const auto channels = static_cast<size_t>(plan.result_channels);
  if (plan.convert) {
    conversion_.element_size = static_cast<int32_t>(plan.convert->element_size);
    conversion_.planar = true;
    conversion_.table = add_data(plan.convert->table.data(), plan.convert->table.size());
  } else {
    std::vector<uint8_t> same(channels * 256);
    for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<uint8_t>(i);
    conversion_.element_size = 1;
    conversion_.planar = false;
    conversion_.table = add_data(same.data(), same.size());
  }
  if (table == Table::elsewhere) {
    data_.clear();
    conversion_.table = 0;
  }
  conversion_bytes_ = data_.size();
}

void BatchBuilder::clear() {
  records_.clear();
  steps_.clear();
  erasures_.clear();
  data_.resize(conversion_bytes_);
  work_ = 0;
}

void BatchBuilder::add(const Parameters& operations, const ImageAt& image, uint64_t out) {
  const Marks before{steps_.size(), erasures_.size(), data_.size()};
  Record record{};
  record.pixels = image.address;
  record.out = out;
  record.work = work_;
  record.image_width = image.width;
  record.first_step = static_cast<uint32_t>(before.steps);
  record.first_erasure = static_cast<uint32_t>(before.erasures);
  width_ = image.width;
  height_ = image.height;
  first_step_ = before.steps;
  most_pixels_ = extra_ = 0;
  try {
    if (out % static_cast<uint64_t>(conversion_.element_size) != 0)
      throw std::invalid_argument("the result's address is no multiple of its elements' size");
    add_steps(operations, record);
    require_result_size();
  } catch (...) {
    steps_.resize(before.steps);
    erasures_.resize(before.erasures);
    data_.resize(before.data);
    throw;
  }
  record.steps = static_cast<uint32_t>(steps_.size() - before.steps);
  record.erasures = static_cast<uint32_t>(erasures_.size() - before.erasures);
  record.most_pixels = aligned(most_pixels_ * sizeof(uint32_t)) / sizeof(uint32_t);
  work_ += 2 * record.most_pixels * sizeof(uint32_t) + aligned(extra_);
  records_.push_back(record);
}

// Runs of windows and flips in as few passes as the native executor makes of them, the first of
// them on the way in.
void BatchBuilder::add_steps(const Parameters& operations, Record& record) {
  const auto erases_result = [](const Operation& operation) {
    return std::holds_alternative<EraseResult>(operation);
  };
  auto next = operations.begin();
  const auto end = std::find_if(next, operations.end(), erases_result);
  if (!std::all_of(end, operations.end(), erases_result))
    throw std::invalid_argument("nothing but erasing can follow erasing of the result");
  Step* way_in = &record.load;
  while (way_in || next != end) {
    const auto windows_end = std::find_if_not(next, end, is_of_a_pass);
    if (way_in || windows_end != next)
      add_windows(group_into_passes(Parameters(next, windows_end), width_, height_), way_in);
    way_in = nullptr;
    for (next = windows_end; next != end && !is_of_a_pass(*next); ++next) add_operation(*next);
  }
  if (!plan_.convert) return;
  for (; next != operations.end(); ++next) add_erasure(std::get<EraseResult>(*next));
}

void BatchBuilder::add_windows(const std::vector<Pass>& passes, Step* way_in) {
  for (Pass pass : passes) {
    if (pass.is_reduced() || pass.box)
      throw std::invalid_argument("a device program cannot do: reduce, or resize of a box");
    if (pass.resized && overlap(pass).width == 0) {
      pass.window = {};  // all of it is the fill
    } else if (pass.resized) {
      pass = add_resize(pass, way_in);
      way_in = nullptr;
    }
    if (way_in || !changes_nothing(pass, width_, height_))
      add_step(StepKind::window, pass.kept.width, pass.kept.height, way_in).window =
          window_of(pass, packed_fill(pass.fill));
    way_in = nullptr;
  }
}

// Returns what is left of the pass: where it keeps more than the resized image, to surround that.
Pass BatchBuilder::add_resize(const Pass& pass, Step* way_in) {
  const Rect &window = pass.window, &kept = pass.kept, made = overlap(pass);
  const bool is_all = made.width == kept.width && made.height == kept.height;
  const Axis across{window.width,           0,      static_cast<double>(window.width),
                    pass.resized_width,     made.x, made.width,
                    is_all && pass.mirrored};
  const Axis down{
      window.height, 0,           static_cast<double>(window.height), pass.resized_height,
      made.y,        made.height, is_all && pass.upside_down};
  ResizeStep resize{window.x, window.y, {}, {}, false};
  resize.across = add_axis(pass.filter, across, resize.left);
  resize.down = add_axis(pass.filter, down, resize.top);
  resize.down_first = is_vertical_first(plan_.vertical_first, pass.filter, across, down);
  const int width = resize.down_first ? resize.across.inputs : made.width;
  const int height = resize.down_first ? made.height : resize.down.inputs;
  require_possible_size(width, height);
  extra_ =
      std::max(extra_, sizeof(uint32_t) * static_cast<size_t>(width) * static_cast<size_t>(height));
  add_step(StepKind::resize, made.width, made.height, way_in).resize = resize;

  Pass rest;
  rest.window = {0, 0, made.width, made.height};
  rest.kept = rest.window;
  if (is_all) return rest;
  rest.kept = {kept.x - made.x, kept.y - made.y, kept.width, kept.height};
  rest.fill = pass.fill;
  rest.mirrored = pass.mirrored;
  rest.upside_down = pass.upside_down;
  return rest;
}

// `first_input` moves to the first input that is read.
ResizeAxis BatchBuilder::add_axis(Filter filter, const Axis& axis, int& first_input) {
  if (axis.in_size == axis.out_size)
    weights_.compute_identity(axis);
  else
    weights_.compute(filter, axis);
  const auto outputs = static_cast<size_t>(weights_.outputs());
  packed_weights_.assign(outputs * (2 + static_cast<size_t>(weights_.most_taps())), 0);
  for (size_t i = 0; i < outputs; ++i) {
    const int output = static_cast<int>(i), count = weights_.count(output);
    packed_weights_[i] = weights_.first(output) - weights_.inputs_begin();
    packed_weights_[outputs + i] = count;
    for (size_t t = 0; t < static_cast<size_t>(count); ++t)
      packed_weights_[outputs * (2 + t) + i] = weights_.taps(output)[t];
  }
  first_input += weights_.inputs_begin();
  const uint32_t data = add_data(packed_weights_.data(), packed_weights_.size() * sizeof(int32_t));
  return {data, weights_.inputs_end() - weights_.inputs_begin(), weights_.outputs()};
}

// One draw per channel is a constant; draws for every pixel need a logarithm and a cosine, which
// the device's library rounds otherwise.
std::vector<uint8_t> BatchBuilder::noise_of(const EraseResult& box) const {
  if (!plan_.convert->is_float32)
    throw std::invalid_argument("noise is made for float32 results only");
  if (box.noise_per_pixel)
    throw std::invalid_argument("a device program cannot do: erase with noise");
  NormalNoise noise(Stream({box.noise, 0, 0, 0}, 0));
  std::vector<float> levels(static_cast<size_t>(conversion_.channels));
  for (float& level : levels) level = noise.next();
  const auto* bytes = reinterpret_cast<const uint8_t*>(levels.data());
  return {bytes, bytes + levels.size() * sizeof(float)};
}

void BatchBuilder::add_erasure(const EraseResult& box) {
  if (box.x < 0 || box.y < 0 || box.width < 0 || box.height < 0 || box.width > width_ - box.x ||
      box.height > height_ - box.y)
    throw std::invalid_argument("a rectangle to erase is not inside the result");
  const std::vector<uint8_t> values = box.values.empty() ? noise_of(box) : box.values;
  if (values.size() != plan_.convert->element_size * static_cast<size_t>(conversion_.channels))
    throw std::invalid_argument("the values to erase with are not those of one pixel");
  const uint32_t data = add_data(values.data(), values.size());
  erasures_.push_back({box.x, box.y, box.width, box.height, data});
}

void BatchBuilder::require_result_size() const {
  const bool fixed = plan_.width > 0;
  if (!fixed || (width_ == plan_.width && height_ == plan_.height)) return;
  throw std::invalid_argument("the result has " + std::to_string(height_) + " x " +
                              std::to_string(width_) + " pixels, the plan says " +
                              std::to_string(plan_.height) + " x " + std::to_string(plan_.width));
}

Step& BatchBuilder::add_step(StepKind kind, int width, int height, Step* way_in) {
  if (width < 1 || height < 1) throw std::invalid_argument("nothing is left of the image");
  require_possible_size(width, height);
  Step& step = way_in ? *way_in : steps_.emplace_back();
  step.kind = kind;
  width_ = step.width = width;
  height_ = step.height = height;
  most_pixels_ = std::max(most_pixels_, static_cast<size_t>(width) * static_cast<size_t>(height));
  return step;
}

uint32_t BatchBuilder::add_data(const void* bytes, size_t count) {
  const size_t begin = data_.size();
  data_.resize(begin + aligned(count));
  if (count > 0) std::memcpy(data_.data() + begin, bytes, count);
  return static_cast<uint32_t>(begin);
}

uint32_t BatchBuilder::packed_fill(const Color& fill) const {
  return plan_.channels == 3 ? packed(fill[0], fill[1], fill[2])
                             : packed(fill[0], fill[0], fill[0]);
}

size_t BatchBuilder::result_bytes() const {
  return static_cast<size_t>(conversion_.element_size) * static_cast<size_t>(conversion_.channels) *
         static_cast<size_t>(width_) * static_cast<size_t>(height_);
}

size_t BatchBuilder::bytes() const {
  return aligned(sizeof(Batch)) + bytes_of(records_) + bytes_of(steps_) + bytes_of(erasures_) +
         bytes_of(data_);
}

void BatchBuilder::write(uint8_t* to) const {
  Batch batch{};
  size_t at = aligned(sizeof batch);
  batch.samples = samples();
  batch.image_channels = plan_.channels;
  batch.records = put(records_, to, at);
  batch.steps = put(steps_, to, at);
  batch.erasures = put(erasures_, to, at);
  batch.data = put(data_, to, at);
  batch.conversion = conversion_;
  std::memcpy(to, &batch, sizeof batch);
}

}  // namespace fusionloader::device
