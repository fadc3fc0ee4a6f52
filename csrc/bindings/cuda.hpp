#pragma once
#include <pybind11/pybind11.h>

#include "cuda/record.hpp"

namespace fusionloader {

// The ledger alone, the arena, and the driver.
void bind_cuda_parts(pybind11::module_& m);

inline const char* name_of(cuda::State state) {
  constexpr const char* names[cuda::kStates] = {"free",     "armed",    "yielded",    "borrowed",
                                                "revoking", "returned", "quarantined"};
  return names[static_cast<int>(state)];
}

}  // namespace fusionloader
