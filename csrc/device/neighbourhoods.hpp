#pragma once
// Steps in which a place's levels depend on its neighbours.
#include "arithmetic/blurs.hpp"
#include "arithmetic/levels.hpp"
#include "device/canvas.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

// The image has at least 3 x 3 pixels.
template <class Team>
FUSIONLOADER_BOTH void sharpen(const Team& team, float factor, const Canvas& canvas) {
  const int width = canvas.width, height = canvas.height;
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    const uint32_t here = canvas.now[i];
    canvas.next[i] = here;
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) return;
    uint32_t made = 0;
    for (int channel = 0; channel < 3; ++channel) {
      const int level = channel_level(here, channel);
      int sum = 4 * level + 6;
      for (int row = y - 1; row <= y + 1; ++row)
        for (int column = x - 1; column <= x + 1; ++column)
          sum += channel_level(canvas.image().at(column, row), channel);
      const uint8_t smooth = smooth_level(static_cast<uint16_t>(sum));
      made |= static_cast<uint32_t>(blend(smooth, level, factor)) << 8 * channel;
    }
    canvas.next[i] = made;
  });
}

// The three levels of a pixel, weighed.
struct Weighed {
  float red, green, blue;
};
FUSIONLOADER_BOTH Weighed operator+(const Weighed& a, const Weighed& b) {
  return {a.red + b.red, a.green + b.green, a.blue + b.blue};
}
FUSIONLOADER_BOTH Weighed operator*(const Weighed& a, float weight) {
  return {a.red * weight, a.green * weight, a.blue * weight};
}
FUSIONLOADER_BOTH Weighed levels_to_weigh(uint32_t pixel) {
  return {static_cast<float>(channel_level(pixel, 0)), static_cast<float>(channel_level(pixel, 1)),
          static_cast<float>(channel_level(pixel, 2))};
}

// Rows, then columns, in float32.
template <class Team>
FUSIONLOADER_BOTH void blur(Team& team, const GaussianStep& step, const float* weights,
                            const Canvas& canvas) {
  const int width = canvas.width, height = canvas.height;
  auto* between = static_cast<Weighed*>(canvas.extra);
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    between[i] = weighed(weights, step.reach_across, [&](int away) {
      return levels_to_weigh(canvas.image().at(reflected(x + away, width), y));
    });
  });
  team.sync();
  const float* down = weights + step.reach_across + 1;
  each_place(team, width, height, [&](int x, int y, uint32_t i) {
    const Weighed sum = weighed(down, step.reach_down, [&](int away) {
      return between[static_cast<size_t>(reflected(y + away, height)) * static_cast<size_t>(width) +
                     static_cast<size_t>(x)];
    });
    canvas.now[i] =
        packed(rounded_level(sum.red), rounded_level(sum.green), rounded_level(sum.blue));
  });
}

// One line of `length` pixels `stride` apart. Beyond its ends it goes on with its outermost ones.
FUSIONLOADER_BOTH void blur_line(const uint32_t* from, uint32_t* to, int length, size_t stride,
                                 const Box& box) {
  const auto at = [&](int i) {
    return from[static_cast<size_t>(clamped(i, 0, length - 1)) * stride];
  };
  // The box around -1.
  const int radius = box.radius, inside = radius < length ? radius : length;
  uint32_t sums[3];
  for (int channel = 0; channel < 3; ++channel) {
    sums[channel] = channel_level(at(0), channel) * static_cast<uint32_t>(radius + 1) +
                    channel_level(at(length), channel) * static_cast<uint32_t>(radius - inside);
    for (int i = 0; i < inside; ++i) sums[channel] += channel_level(at(i), channel);
  }
  for (int i = 0; i < length; ++i) {
    const uint32_t left = at(i - radius - 1), last = at(i + radius), right = at(i + radius + 1);
    uint32_t made = 0;
    for (int channel = 0; channel < 3; ++channel) {
      const uint32_t leaving = channel_level(left, channel);
      sums[channel] += channel_level(last, channel) - leaving;
      const uint32_t edges = leaving + channel_level(right, channel);
      made |= static_cast<uint32_t>(boxed_level(box, sums[channel], edges)) << 8 * channel;
    }
    to[static_cast<size_t>(i) * stride] = made;
  }
}

template <class Team>
FUSIONLOADER_BOTH void blur_by_boxes(Team& team, const Box& box, Canvas& canvas) {
  const int width = canvas.width, height = canvas.height;
  const auto row = static_cast<size_t>(width);
  for (int pass = 0; pass < 2 * Box::passes; ++pass) {
    if (pass < Box::passes)
      each(team, height, [&](int y) {
        const size_t begin = static_cast<size_t>(y) * row;
        blur_line(canvas.now + begin, canvas.next + begin, width, 1, box);
      });
    else
      each(team, width,
           [&](int x) { blur_line(canvas.now + x, canvas.next + x, height, row, box); });
    team.sync();
    canvas.turn(width, height);
  }
}

}  // namespace fusionloader::device
