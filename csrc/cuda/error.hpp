#pragma once
// What goes wrong when GPU memory is lent; the bindings make an exception of Python's of it.
#include <stdexcept>
#include <string>

namespace fusionloader::cuda {

enum class Fault { cuda, unavailable, device, ledger, peer, size, grant };

class Error : public std::runtime_error {
 public:
  Error(Fault fault, const std::string& text, int code = 0)
      : std::runtime_error(text), fault(fault), code(code) {}
  const Fault fault;
  const int code;  // the driver's, when it is at fault
};

}  // namespace fusionloader::cuda
