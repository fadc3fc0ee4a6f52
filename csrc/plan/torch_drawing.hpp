#pragma once
// Draws the operations of a transform as torchvision does, by the same numbers of torch's
// generator.
#include <functional>
#include <vector>

#include "plan/drawing.hpp"
#include "rng/torch_twister.hpp"

namespace fusionloader {

struct TorchTransforms {
  std::vector<StageNode> stages;
  // For each stage, of RandomResizedCrop: torch's logarithms of its ratio.
  std::vector<Range> log_ratios;
  std::function<double(double)> exp;  // torch.exp() in float32
};

// Sizes of images for which transforms are drawn.
struct TorchSizes {
  int least_side;
  double most_pixels;
};

struct TorchDrawn {
  Parameters operations;
  Size size;            // of the result
  size_t done = 0;      // transforms
  bool is_new = false;  // whether torchvision returns another image than it was given
};

// Draws transforms up to the first that torchvision itself has to do, which draws nothing here: of
// an image with another size, or of a stage that is not one of those below.
TorchDrawn draw_as_torch(const TorchTransforms& transforms, TorchEngine& engine, Size size,
                         TorchSizes sizes);

}  // namespace fusionloader
