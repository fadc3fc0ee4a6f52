#include "plan/erase_result.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "rng/normal.hpp"

namespace fusionloader {
namespace {

class Rows {
 public:
  Rows(const ConvertSpec& convert, const ResultShape& shape, uint8_t* out)
      : element_(convert.element_size), shape_(shape), out_(out) {}

  // Calls `write(channel, address)` for every element of the rectangle, channel by channel.
  template <class Write>
  void each(const EraseResult& box, Write write) const {
    for (int channel = 0; channel < shape_.channels; ++channel)
      for (int y = box.y; y < box.y + box.height; ++y)
        for (int x = box.x; x < box.x + box.width; ++x)
          write(static_cast<size_t>(channel), at(channel, x, y));
  }

 private:
  uint8_t* at(int channel, int x, int y) const {
    const auto row =
        static_cast<size_t>(channel) * static_cast<size_t>(shape_.height) + static_cast<size_t>(y);
    return out_ + element_ * (row * static_cast<size_t>(shape_.width) + static_cast<size_t>(x));
  }

  size_t element_;
  ResultShape shape_;
  uint8_t* out_;
};

void require_sense(const EraseResult& box, const ConvertSpec& convert, const ResultShape& shape) {
  if (box.x < 0 || box.y < 0 || box.width < 0 || box.height < 0 ||
      box.width > shape.width - box.x || box.height > shape.height - box.y)
    throw std::invalid_argument("a rectangle to erase is not inside the result");
  if (box.values.empty() && !convert.is_float32)
    throw std::invalid_argument("noise is made for float32 results only");
  if (!box.values.empty() &&
      box.values.size() != convert.element_size * static_cast<size_t>(shape.channels))
    throw std::invalid_argument("the values to erase with are not those of one pixel");
}

void fill_with_noise(const EraseResult& box, const Rows& rows, int channels) {
  Stream random({box.noise, 0, 0, 0}, 0);
  std::vector<float> levels(static_cast<size_t>(channels));
  for (float& level : levels) level = static_cast<float>(normal(random));
  rows.each(box, [&](size_t channel, uint8_t* element) {
    const float value = box.noise_per_pixel ? static_cast<float>(normal(random)) : levels[channel];
    std::memcpy(element, &value, sizeof value);
  });
}

}  // namespace

void erase_results(const Parameters& parameters, const ConvertSpec& convert,
                   const ResultShape& shape, uint8_t* out) {
  const Rows rows(convert, shape, out);
  for (const Operation& operation : parameters) {
    const auto* box = std::get_if<EraseResult>(&operation);
    if (!box) continue;
    require_sense(*box, convert, shape);
    if (box->values.empty()) {
      fill_with_noise(*box, rows, shape.channels);
      continue;
    }
    rows.each(*box, [&](size_t channel, uint8_t* element) {
      std::memcpy(element, box->values.data() + channel * convert.element_size,
                  convert.element_size);
    });
  }
}

}  // namespace fusionloader
