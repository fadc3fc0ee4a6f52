// What a profiler is to NVTX: a library that is told of ranges. It prints those of domains.
//
// NVTX loads it by NVTX_INJECTION64_PATH. The declarations are those parts of NVTX's interface that
// are needed; their numbers and layouts are its ABI.
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char* message;  // registered: what register_string has returned
};

using Pointer = void (*)();
struct Callbacks {
  size_t size;
  int (*functions_of)(int module, Pointer*** table, unsigned* count);
};
constexpr uint32_t kCallbacks = 1;
constexpr int kDomains = 5;
enum Function { push_range = 4, pop_range = 5, register_string = 10, create_domain = 12 };

const char* create(const char* name) { return strdup(name); }
const char* registered(const char*, const char* text) { return strdup(text); }
int push(const char* domain, const Attributes* event) {
  std::printf("%s push %s\n", domain, event->message);
  return 0;
}
int pop(const char* domain) {
  std::printf("%s pop\n", domain);
  std::fflush(stdout);
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void* (*table_of)(uint32_t)) {
  const auto* callbacks = static_cast<const Callbacks*>(table_of(kCallbacks));
  Pointer** table = nullptr;
  unsigned count = 0;
  if (callbacks == nullptr || !callbacks->functions_of(kDomains, &table, &count)) return 0;
  *table[push_range] = reinterpret_cast<Pointer>(push);
  *table[pop_range] = reinterpret_cast<Pointer>(pop);
  *table[register_string] = reinterpret_cast<Pointer>(registered);
  *table[create_domain] = reinterpret_cast<Pointer>(create);
  return 1;
}
