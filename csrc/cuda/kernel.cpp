#include "cuda/kernel.hpp"

#include <unistd.h>

namespace fusionloader::cuda {

Kernel::Kernel(int device, const std::string& image, const std::string& name)
    : device_(device), pid_(getpid()), module_(OnDevice(device).load_module(image.c_str())) {
  const OnDevice on(device);
  try {
    function_ = on.function(module_, name.c_str());
  } catch (...) {
    on.unload(module_);
    throw;
  }
}

Kernel::~Kernel() {
  if (pid_ != getpid()) return;  // CUDA is its parent's
  try {
    OnDevice(device_).unload(module_);
  } catch (const std::exception&) {  // the device is lost
  }
}

}  // namespace fusionloader::cuda
