#pragma once
// The intrinsics of AVX-512. GCC 12 takes the undefined operands inside them for uninitialised
// values.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
