// Prints how many nanoseconds a native worker spends on counting one sample, without the sample:
// what PlanWorker and the executor do for the record, as often as `parts` says for its parts. And
// what it spends on looking at its thread's processor time, as it does every 10 ms.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "plan/part_times.hpp"
#include "queue/layout.hpp"
#include "queue/processor_time.hpp"

namespace {

using fusionloader::Part;
using fusionloader::PartTimes;
using fusionloader::ProcessorTime;
using fusionloader::WorkerCount;

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void count_sample(fusionloader::WorkerRecord& record, PartTimes& times, size_t parts) {
  record.since_ns.store(now_ns(), std::memory_order_relaxed);
  for (size_t part = 0; part < parts; ++part) const PartTimes::Timed timed(times, Part{part});
  record.count(WorkerCount::read_bytes).fetch_add(78'000, std::memory_order_relaxed);
  times.move_to(record.part_ns);
  record.count(WorkerCount::busy_ns)
      .fetch_add(now_ns() - record.since_ns.load(std::memory_order_relaxed));
  record.count(WorkerCount::samples).fetch_add(1);
}

}  // namespace

int main(int, char** arguments) {
  constexpr int kSamples = 100'000;
  const size_t parts = std::strtoul(arguments[1], nullptr, 10);
  const auto record = std::make_unique<fusionloader::WorkerRecord>();
  PartTimes times;
  const uint64_t begun = now_ns();
  for (int sample = 0; sample < kSamples; ++sample) count_sample(*record, times, parts);
  std::printf("%.1f\n", static_cast<double>(now_ns() - begun) / kSamples);
  constexpr int kLooks = 10'000;
  uint64_t looked = 0;
  const uint64_t looking = now_ns();
  for (int look = 0; look < kLooks; ++look) looked += ProcessorTime::now(1).seen_ns;
  std::printf("%.1f\n", static_cast<double>(now_ns() - looking) / static_cast<double>(looked));
  return record->count(WorkerCount::samples).load() == kSamples ? 0 : 1;
}
