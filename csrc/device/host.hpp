#pragma once
// Runs batches on the host, with the body of the CUDA kernel: for GPU workers on DALI's CPU
// backend, for tests and for debugging.
#include "device/builder.hpp"

namespace fusionloader::device {

// In teams of `lanes` lanes, one of which runs at a time: between two waits each lane does all of
// its part, and the order of lanes changes from wait to wait. Code that relies on an order that no
// wait ensures therefore fails every time. Throws std::invalid_argument for less than one lane or
// more than 64.
void run_on_host(const BatchBuilder& batch, int lanes);

// What a launch of the CUDA kernel does: the samples of a block that BatchBuilder::write() made,
// with the working memory that it asks for. Throws std::invalid_argument for more samples than the
// block has.
void run_block_on_host(const uint8_t* block, uint8_t* work, uint32_t samples);

}  // namespace fusionloader::device
