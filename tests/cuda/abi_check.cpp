// Compiled where a CUDA toolkit is, and linked into nothing: what csrc/cuda/driver_table.hpp
// declares by hand is what cuda.h declares.
#include <cuda.h>

#include <type_traits>

// Drivers before 12.8 have the first version alone, which has the same arguments.
#ifdef cuEventElapsedTime
#undef cuEventElapsedTime
extern "C" decltype(cuEventElapsedTime_v2) cuEventElapsedTime;
#endif

#include "cuda/driver_table.hpp"

namespace {

template <class Ours, class Theirs>
constexpr bool alike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == std::is_class_v<Theirs>;
template <class Ours, class Theirs>
constexpr bool same_argument =
    alike<Ours, Theirs> &&
    (std::is_pointer_v<Ours> || std::is_class_v<Ours> || std::is_enum_v<Theirs> ||
     std::is_signed_v<Ours> == std::is_signed_v<Theirs>);

template <class Ours, class Theirs>
struct Same : std::false_type {};
template <class R, class... A, class S, class... B>
struct Same<R(A...), S(B...)> {
  template <bool as_many>
  static constexpr bool each() {
    if constexpr (as_many)
      return (same_argument<A, B> && ...);
    else
      return false;
  }
  static constexpr bool value = sizeof(R) == sizeof(S) && each<sizeof...(A) == sizeof...(B)>();
};

constexpr bool equal(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

}  // namespace

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

#define CHECK(name, symbol, arguments)                           \
  static_assert(Same<Result arguments, decltype(::name)>::value, \
                #name " has other arguments in cuda.h");         \
  static_assert(equal(TEXT(name), symbol), #name " is another symbol in this toolkit");
namespace fusionloader::cuda {
FUSIONLOADER_CUDA_ENTRY_POINTS(CHECK)
}  // namespace fusionloader::cuda

namespace ours = fusionloader::cuda;
static_assert(sizeof(ours::UuidBytes) == sizeof(CUuuid));
static_assert(sizeof(ours::IpcHandleBytes) == sizeof(CUipcMemHandle));
static_assert(ours::kSuccess == CUDA_SUCCESS);
static_assert(ours::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(ours::kLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(ours::kBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(ours::kDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(ours::kLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(ours::kNotCapturing == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(ours::kWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(ours::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(ours::kRelaxedCapture == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(ours::kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(ours::kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
