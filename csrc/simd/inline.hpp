#pragma once
// Takes over the instruction set of the function that it is inlined into.
#define FUSIONLOADER_INLINE inline __attribute__((always_inline))
