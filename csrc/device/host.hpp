#pragma once
// Runs a batch on the host, with the body of the CUDA kernel: for tests and for debugging.
#include "device/builder.hpp"

namespace fusionloader::device {

// In teams of `lanes` lanes, one of which runs at a time: between two waits each lane does all of
// its part, and the order of lanes changes from wait to wait. Code that relies on an order that no
// wait ensures therefore fails every time. Throws std::invalid_argument for less than one lane or
// more than 64.
void run_on_host(const BatchBuilder& batch, int lanes);

}  // namespace fusionloader::device
