#pragma once
// A kernel that was loaded into a device.
#include <sys/types.h>

#include <string>

#include "cuda/driver.hpp"

namespace fusionloader::cuda {

class Kernel {
 public:
  // `image` is CUBIN, or PTX with a zero at its end.
  Kernel(int device, const std::string& image, const std::string& name);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  Function function() const { return function_; }

 private:
  int device_;
  pid_t pid_;
  Module module_;
  Function function_ = nullptr;
};

}  // namespace fusionloader::cuda
