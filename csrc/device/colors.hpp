#pragma once
// Steps that change levels in place, by themselves or by what the whole image says.
#include "arithmetic/hue.hpp"
#include "arithmetic/levels.hpp"
#include "device/canvas.hpp"
#include "device/program.hpp"
#include "device/team.hpp"

namespace fusionloader::device {

template <class Team, class Change>
FUSIONLOADER_BOTH void change_pixels(const Team& team, const Canvas& canvas, const Change& change) {
  each(team, canvas.size(), [&](int i) {
    const uint32_t pixel = canvas.now[i];
    canvas.now[i] =
        change(Pixel{channel_level(pixel, 0), channel_level(pixel, 1), channel_level(pixel, 2)});
  });
}

// Every channel through its table in scratch, which all lanes have written to.
template <class Team>
FUSIONLOADER_BOTH void look_up(Team& team, const Canvas& canvas) {
  team.sync();
  const auto& tables = team.scratch().tables;
  change_pixels(team, canvas, [&](const Pixel& pixel) {
    return packed(tables[0][pixel.red], tables[1][pixel.green], tables[2][pixel.blue]);
  });
}

// `level_of(i)` gives what becomes of level i in all channels.
template <class Team, class LevelOf>
FUSIONLOADER_BOTH void look_up_same(Team& team, const Canvas& canvas, const LevelOf& level_of) {
  each(team, 256, [&](int i) {
    const uint8_t level = level_of(i);
    for (auto& table : team.scratch().tables) table[i] = level;
  });
  look_up(team, canvas);
}

template <class Team>
FUSIONLOADER_BOTH void saturate(const Team& team, float factor, const Canvas& canvas) {
  change_pixels(team, canvas, [&](const Pixel& pixel) {
    const int grey = grey_level(pixel.red, pixel.green, pixel.blue);
    return packed(blend(grey, pixel.red, factor), blend(grey, pixel.green, factor),
                  blend(grey, pixel.blue, factor));
  });
}

template <class Team>
FUSIONLOADER_BOTH void turn_hue(const Team& team, int turn, const Canvas& canvas) {
  change_pixels(team, canvas, [&](const Pixel& pixel) {
    const Pixel turned = with_hue_turned(pixel, turn);
    return packed(turned.red, turned.green, turned.blue);
  });
}

template <class Team>
FUSIONLOADER_BOTH void erase(const Team& team, const EraseStep& step, const Canvas& canvas) {
  each_place(team, step.width, step.height, [&](int x, int y, uint32_t) {
    const size_t row = static_cast<size_t>(step.y + y) * static_cast<size_t>(canvas.width);
    canvas.now[row + static_cast<size_t>(step.x + x)] = step.fill;
  });
}

template <class Team>
FUSIONLOADER_BOTH void change_contrast(Team& team, float factor, const Canvas& canvas) {
  Scratch& scratch = team.scratch();
  if (team.lane() == 0) scratch.sum = 0;
  team.sync();
  uint64_t sum = 0;
  each(team, canvas.size(), [&](int i) {
    const uint32_t pixel = canvas.now[i];
    sum += grey_level(channel_level(pixel, 0), channel_level(pixel, 1), channel_level(pixel, 2));
  });
  team.add(scratch.sum, sum);
  team.sync();
  const int mean = mean_level(scratch.sum, static_cast<uint64_t>(canvas.size()));
  look_up_same(team, canvas, [&](int level) { return blend(mean, level, factor); });
}

// Counts the levels of each channel; the sums are in the first copy of the counts.
template <class Team>
FUSIONLOADER_BOTH void count_levels(Team& team, const Canvas& canvas) {
  Scratch& scratch = team.scratch();
  each(team, Scratch::copies * Scratch::copy_stride, [&](int i) { scratch.counts[i] = 0; });
  team.sync();
  uint32_t* mine = scratch.counts + team.lane() % Scratch::copies * Scratch::copy_stride;
  each(team, canvas.size(), [&](int i) {
    const uint32_t pixel = canvas.now[i];
    for (int channel = 0; channel < 3; ++channel)
      team.add(mine[256 * channel + channel_level(pixel, channel)], 1u);
  });
  team.sync();
  each(team, 3 * 256, [&](int i) {
    uint32_t count = 0;
    for (int copy = 0; copy < Scratch::copies; ++copy)
      count += scratch.counts[copy * Scratch::copy_stride + i];
    scratch.counts[i] = count;
  });
  team.sync();
}

template <class Team>
FUSIONLOADER_BOTH void stretch_levels(Team& team, const Canvas& canvas) {
  count_levels(team, canvas);
  Scratch& scratch = team.scratch();
  each(team, 3, [&](int channel) {
    const uint32_t* counts = scratch.counts + 256 * channel;
    int least = 0, most = 255;
    while (least < 255 && counts[least] == 0) ++least;
    while (most > 0 && counts[most] == 0) --most;
    scratch.least[channel] = least;
    scratch.most[channel] = most;
  });
  team.sync();
  each(team, 3 * 256, [&](int i) {
    const int channel = i / 256, level = i % 256;
    const int least = scratch.least[channel], most = scratch.most[channel];
    scratch.tables[channel][level] = most > least ? stretched_level(level, stretching(least, most))
                                                  : static_cast<uint8_t>(level);
  });
  look_up(team, canvas);
}

template <class Team>
FUSIONLOADER_BOTH void equalize_levels(Team& team, const Canvas& canvas) {
  count_levels(team, canvas);
  Scratch& scratch = team.scratch();
  // Counts become those of the levels below, plus half a step.
  each(team, 3, [&](int channel) {
    uint32_t* counts = scratch.counts + 256 * channel;
    uint32_t total = 0, last = 0;
    for (int level = 0; level < 256; ++level) {
      total += counts[level];
      last = counts[level] != 0 ? counts[level] : last;
    }
    const uint32_t step = equalizing_step(total, last);
    uint32_t passed = step / 2;
    for (int level = 0; level < 256; ++level) {
      const uint32_t count = counts[level];
      counts[level] = passed;
      passed += count;
    }
    scratch.step[channel] = step;
  });
  team.sync();
  each(team, 3 * 256, [&](int i) {
    const int channel = i / 256, level = i % 256;
    const uint32_t step = scratch.step[channel];
    scratch.tables[channel][level] =
        step > 0 ? equalized_level(scratch.counts[i], step) : static_cast<uint8_t>(level);
  });
  look_up(team, canvas);
}

}  // namespace fusionloader::device
