#include "plan/erase_result.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "rng/normal.hpp"

namespace fusionloader {
namespace {

class Rows {
 public:
  Rows(const ConvertSpec& convert, const ResultShape& shape, uint8_t* out)
      : element_(convert.element_size), shape_(shape), out_(out) {}

  // Calls `write(address)` for every row of the rectangle, channel by channel.
  template <class Write>
  void each(const EraseResult& box, Write write) const {
    for (int channel = 0; channel < shape_.channels; ++channel)
      for (int y = box.y; y < box.y + box.height; ++y) write(at(channel, box.x, y));
  }

  // One value for each channel.
  void fill(const EraseResult& box, const uint8_t* values) const {
    const size_t bytes = static_cast<size_t>(box.width) * element_;
    if (bytes == 0 || box.height == 0) return;
    for (int channel = 0; channel < shape_.channels; ++channel, values += element_) {
      uint8_t* first = at(channel, box.x, box.y);
      repeat(values, first, bytes);
      for (int y = box.y + 1; y < box.y + box.height; ++y)
        std::memcpy(at(channel, box.x, y), first, bytes);
    }
  }

 private:
  uint8_t* at(int channel, int x, int y) const {
    const size_t row =
        static_cast<size_t>(channel) * static_cast<size_t>(shape_.height) + static_cast<size_t>(y);
    return out_ + element_ * (row * static_cast<size_t>(shape_.width) + static_cast<size_t>(x));
  }

  // One element over and over: what is there is doubled as long as there is room.
  void repeat(const uint8_t* element, uint8_t* row, size_t bytes) const {
    std::memcpy(row, element, element_);
    for (size_t done = element_; done < bytes; done *= 2)
      std::memcpy(row + done, row, std::min(done, bytes - done));
  }

  size_t element_;
  ResultShape shape_;
  uint8_t* out_;
};

void require_sense(const EraseResult& box, const ConvertSpec& convert, const ResultShape& shape) {
  if (box.x < 0 || box.y < 0 || box.width < 0 || box.height < 0 ||
      box.width > shape.width - box.x || box.height > shape.height - box.y)
    throw std::invalid_argument("a rectangle to erase is not inside the result");
  if (!convert.order.empty())
    throw std::invalid_argument("a result in an order of its own is not erased");
  if (box.values.empty() && !convert.is_float32)
    throw std::invalid_argument("noise is made for float32 results only");
  if (!box.values.empty() &&
      box.values.size() != convert.element_size * static_cast<size_t>(shape.channels))
    throw std::invalid_argument("the values to erase with are not those of one pixel");
}

void fill_with_noise(const EraseResult& box, const Rows& rows, int channels) {
  NormalNoise noise(Stream({box.noise, 0, 0, 0}, 0));
  std::vector<float> values(static_cast<size_t>(channels));
  for (float& value : values) value = noise.next();
  if (!box.noise_per_pixel) return rows.fill(box, reinterpret_cast<const uint8_t*>(values.data()));
  values.resize(static_cast<size_t>(box.width));
  rows.each(box, [&](uint8_t* row) {
    for (float& value : values) value = noise.next();
    std::memcpy(row, values.data(), values.size() * sizeof(float));
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
    if (box->values.empty())
      fill_with_noise(*box, rows, shape.channels);
    else
      rows.fill(*box, box->values.data());
  }
}

}  // namespace fusionloader
