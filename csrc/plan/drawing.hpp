#pragma once
// Draws the operations of one sample, stage by stage, in float64.
#include "plan/program.hpp"

namespace fusionloader {

struct Size {
  int width, height;
};

// Python's round(): halves go to the even neighbour, as the default rounding mode's nearbyint.
int round_half_even(double value);

class Drawing {
 public:
  Drawing(const SampleKey& key, Size size) : key_(key), size_(size) {}

  void run(const std::vector<StageNode>& stages);
  void run(const StageNode& node);
  void make_tensor() { memory_ = Memory::interleaved; }
  void copy_tensor() {
    if (memory_ == Memory::window) memory_ = Memory::interleaved;
  }
  size_t count() const { return operations_.size(); }
  Size size() const { return size_; }
  Parameters finish() { return std::move(operations_); }

  void operator()(const RandomResizedCrop& stage);
  void operator()(const ResizeShorterSide& stage);
  void operator()(const ResizeStage& stage);
  void operator()(const ResizeKeepRatio& stage);
  void operator()(const CenterCrop& stage);
  void operator()(const CropOrPad& stage);
  void operator()(const TrimBorder& stage);
  void operator()(const RandomCrop& stage);
  void operator()(const RandomHorizontalFlip& stage);
  void operator()(const RandomVerticalFlip& stage);
  void operator()(const ColorJitter& stage);
  void operator()(const GaussianBlur& stage);
  void operator()(const RandomRotation& stage);
  void operator()(const RandomAffine& stage);
  void operator()(const RandomPerspective& stage);
  void operator()(const Fixed& stage);
  void operator()(const RandomPolicy& stage);
  void operator()(const AugMix& stage);
  void operator()(const RandomErasing& stage);
  void operator()(const RandomApply& stage);
  void operator()(const RandomChoice& stage);
  void operator()(const RandomOrder& stage);

 private:
  Stream stream() const { return Stream(key_, number_); }
  // For everything that is not about windows, flips and erasing.
  Stream shared_stream() const { return Stream(key_.shared(), number_); }
  void add(Operation operation);
  void crop(const CropTo& window);
  void resize(Size size, Filter filter);
  CropTo random_window(const RandomResizedCrop& stage, Stream& random) const;
  // Of `steps` times a policy, on a copy of the image.
  Parameters draw_chain(const RandomPolicy& policy, int steps, Stream& random) const;

  SampleKey key_;
  Size size_;
  // How torchvision's v2 would have a tensor lie in memory: as made of a Pillow image, as a window
  // of such a one, or channel by channel.
  enum class Memory { interleaved, window, planar } memory_ = Memory::interleaved;
  bool on_floats_ = false;
  unsigned number_ = 0;
  Parameters operations_;
};

// A place among the weights, each as likely as its share. Throws std::invalid_argument where none
// is more than 0.
size_t draw_weighted(const std::vector<double>& weights, Stream& random);

// Appends what the policy does to an image of that size.
void draw_policy(const RandomPolicy& policy, Stream& random, Size size, Parameters& operations);

}  // namespace fusionloader
