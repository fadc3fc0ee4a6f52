#pragma once
// The C interface of the CUDA library, which Python calls by ctypes. Functions that may fail return
// 0 or a code of the CUDA runtime, of which fl_error_text() makes words.
#include <cstddef>

extern "C" {

const char* fl_error_text(int code);
// What the driver says of the devices: an error where there is none.
int fl_device_count(int* count);

// Launches batches on one device: staging memory for their programs and working memory, kept from
// launch to launch. Calls for one augmenter come from one thread at a time.
struct fl_augmenter;
int fl_augmenter_create(int device, fl_augmenter** made);
void fl_augmenter_destroy(fl_augmenter* augmenter);

// Page-locked memory of `bytes` for the next batch's program; waits until the device has read what
// was there four launches ago.
int fl_augment_begin(fl_augmenter* augmenter, size_t bytes, void** program);
// Copies the program that was written there and runs its samples, all in the order of `stream`.
// They need `work_bytes` of working memory: the caller's `work`, to be kept until the stream has
// come so far, or where that is null the augmenter's.
int fl_augment_launch(fl_augmenter* augmenter, int samples, void* work, size_t work_bytes,
                      void* stream);

// For tests, and for callers without another CUDA library.
int fl_allocate(size_t bytes, void** made);
int fl_free(void* memory);
int fl_copy(void* to, const void* from, size_t bytes);
int fl_synchronize(void);
}
