#pragma once
// Runs a batch on the host, with the very body of the CUDA kernel: for tests and for looking into.
#include "device/builder.hpp"

namespace fusionloader::device {

// By teams of so many lanes, which take turns: between two waits every lane in turn does all of its
// part, first to last, last to first and in other orders by turns. Whatever relies on an order that
// no wait ensures therefore fails, and fails every time. Throws std::invalid_argument for less than
// one lane or more than 64.
void run_on_host(const BatchBuilder& batch, int lanes);

}  // namespace fusionloader::device
