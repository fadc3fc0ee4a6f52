#pragma once
// The body of the augmentation kernel: all that is done to one sample, by one team.
#include "device/colors.hpp"
#include "device/neighbourhoods.hpp"
#include "device/resize.hpp"
#include "device/result.hpp"
#include "device/warps.hpp"

namespace fusionloader::device {

// Lanes may still be at work when this returns: the caller has them wait for each other.
template <class Team>
FUSIONLOADER_BOTH void run_step(Team& team, const Step& step, const uint8_t* data, Canvas& canvas) {
  switch (step.kind) {
    case StepKind::window:
      take_window(team, step.window, step.width, step.height, canvas.next,
                  [&](int x, int y) { return canvas.image().at(x, y); });
      return canvas.turn(step.width, step.height);
    case StepKind::border:
      add_border(team, step.border, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::quarter_turn:
      turn_quarter(team, step.quarter_turn.clockwise, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::scale:
      scale(team, step, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::fixed_point:
      warp_fixed(team, step, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::added_up:
      warp_adding_up(team, step, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::affine:
      warp<false>(team, step, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::perspective:
      warp<true>(team, step, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::resize:
      resize(team, step.resize, data, static_cast<uint32_t*>(canvas.extra), canvas.next,
             [&](int x, int y) { return canvas.image().at(x, y); });
      return canvas.turn(step.width, step.height);
    case StepKind::table:
      return look_up_same(
          team, canvas, [&](int level) { return data[step.data + static_cast<uint32_t>(level)]; });
    case StepKind::saturation:
      return saturate(team, step.blend.factor, canvas);
    case StepKind::hue:
      return turn_hue(team, step.hue.turn, canvas);
    case StepKind::erase:
      return erase(team, step.erase, canvas);
    case StepKind::contrast:
      return change_contrast(team, step.blend.factor, canvas);
    case StepKind::autocontrast:
      return stretch_levels(team, canvas);
    case StepKind::equalize:
      return equalize_levels(team, canvas);
    case StepKind::sharpness:
      sharpen(team, step.blend.factor, canvas);
      return canvas.turn(step.width, step.height);
    case StepKind::gaussian:
      return blur(team, step.gaussian, reinterpret_cast<const float*>(data + step.data), canvas);
    case StepKind::box_blur:
      return blur_by_boxes(team, step.box, canvas);
  }
}

template <class Team>
FUSIONLOADER_BOTH void load(Team& team, const Record& record, const uint8_t* pixels, int channels,
                            const uint8_t* data, const Canvas& canvas) {
  const auto width = static_cast<size_t>(record.image_width);
  const Step& step = record.load;
  const auto read = [&](int x, int y) {
    const size_t at = static_cast<size_t>(y) * width + static_cast<size_t>(x);
    if (channels == 1) return packed(pixels[at], pixels[at], pixels[at]);
    return packed(pixels[3 * at], pixels[3 * at + 1], pixels[3 * at + 2]);
  };
  if (step.kind == StepKind::resize)
    resize(team, step.resize, data, static_cast<uint32_t*>(canvas.extra), canvas.now, read);
  else
    take_window(team, step.window, step.width, step.height, canvas.now, read);
}

// Where a sample is: its pixels, its result, and the working memory of its own. `table` has
// `channels` x 256 elements.
struct SamplePlace {
  const uint8_t *pixels, *table;
  uint8_t* work;
  void* out;
};

// A sample of the batch at `begin`.
template <class Team>
FUSIONLOADER_BOTH void run_record(Team& team, const uint8_t* begin, const Record& record,
                                  const SamplePlace& at) {
  const Batch& batch = *reinterpret_cast<const Batch*>(begin);
  const auto* steps = reinterpret_cast<const Step*>(begin + batch.steps) + record.first_step;
  const auto* boxes = reinterpret_cast<const Erasure*>(begin + batch.erasures);
  const uint8_t* data = begin + batch.data;

  auto* first = reinterpret_cast<uint32_t*>(at.work);
  Canvas canvas{first, first + record.most_pixels, first + 2 * record.most_pixels,
                record.load.width, record.load.height};
  load(team, record, at.pixels, batch.image_channels, data, canvas);
  for (uint32_t i = 0; i < record.steps; ++i) {
    team.sync();
    run_step(team, steps[i], data, canvas);
  }
  team.sync();

  const Conversion& conversion = batch.conversion;
  const ResultPlace place{conversion.channels, canvas.width, canvas.height, conversion.planar};
  convert(team, conversion.element_size, at.table, canvas, place, at.out);
  for (uint32_t i = 0; i < record.erasures; ++i) {
    team.sync();
    const Erasure& box = boxes[record.first_erasure + i];
    erase_result(team, box, conversion.element_size, data + box.data, place, at.out);
  }
}

// Sample `number` of the batch at `begin`, with the working memory that the batch asks for.
template <class Team>
FUSIONLOADER_BOTH void run_sample(Team& team, const uint8_t* begin, uint8_t* work,
                                  uint32_t number) {
  const Batch& batch = *reinterpret_cast<const Batch*>(begin);
  const Record& record = reinterpret_cast<const Record*>(begin + batch.records)[number];
  run_record(
      team, begin, record,
      {reinterpret_cast<const uint8_t*>(record.pixels), begin + batch.data + batch.conversion.table,
       work + record.work, reinterpret_cast<void*>(record.out)});
}

}  // namespace fusionloader::device
