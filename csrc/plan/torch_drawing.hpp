#pragma once
// Draws the operations of a transform as torchvision does, by the same numbers of torch's
// generator.
#include <functional>
#include <optional>

#include "plan/drawing.hpp"
#include "rng/torch_twister.hpp"

namespace fusionloader {

struct TorchTransform {
  StageNode stage;
  // Of RandomResizedCrop: torch's logarithms of its ratio, and torch.exp(), both in float32.
  Range log_ratio;
  std::function<double(double)> exp;
};

struct TorchDrawn {
  Parameters operations;
  Size size;  // of the result
};

// Nothing, and nothing is drawn, for an image that torchvision itself has to transform, and for
// every image if the stage is not one of those below.
std::optional<TorchDrawn> draw_as_torch(const TorchTransform& transform, TorchEngine& engine,
                                        Size size);

}  // namespace fusionloader
