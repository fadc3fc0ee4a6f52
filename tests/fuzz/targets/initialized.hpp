#pragma once
// Asks the memory sanitizer, where there is one, whether all of some memory has been written.
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define FUSIONLOADER_CHECK_INITIALIZED(data, size) __msan_check_mem_is_initialized(data, size)
#endif
#endif
#ifndef FUSIONLOADER_CHECK_INITIALIZED
#define FUSIONLOADER_CHECK_INITIALIZED(data, size) static_cast<void>(0)
#endif
