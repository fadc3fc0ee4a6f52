#include "device/host.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "device/body.hpp"
#include "device/one_lane.hpp"

namespace fusionloader::device {
namespace {

constexpr int most_lanes = 64;

// Which lane runs. Orders differ from phase to phase.
class Turns {
 public:
  explicit Turns(int lanes) : lanes_(lanes) {}

  void wait_for(int lane) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lane_at(place_) == lane; });
  }
  void end_turn() {
    {
      const std::lock_guard lock(mutex_);
      if (++place_ == lanes_) {
        place_ = 0;
        ++phase_;
      }
    }
    changed_.notify_all();
  }

 private:
  int lane_at(int place) const {
    const int forwards = phase_ % 2 == 0 ? place : lanes_ - 1 - place;
    return (forwards + phase_ / 2) % lanes_;
  }

  int lanes_, place_ = 0, phase_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

class OneOfLanes {
 public:
  OneOfLanes(Scratch& scratch, Turns& turns, int lane, int lanes)
      : scratch_(scratch), turns_(turns), lane_(lane), lanes_(lanes) {}
  int lane() const { return lane_; }
  int lanes() const { return lanes_; }
  void sync() const {
    turns_.end_turn();
    turns_.wait_for(lane_);
  }
  Scratch& scratch() const { return scratch_; }
  template <class Count>
  void add(Count& counter, Count value) const {
    counter += value;
  }

 private:
  Scratch& scratch_;
  Turns& turns_;
  int lane_, lanes_;
};

struct Memory {
  std::unique_ptr<uint64_t[]> block, work;
  std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();

  explicit Memory(const BatchBuilder& batch)
      : block(std::make_unique<uint64_t[]>(batch.bytes() / sizeof(uint64_t))),
        work(std::make_unique<uint64_t[]>(batch.work_bytes() / sizeof(uint64_t))) {
    batch.write(reinterpret_cast<uint8_t*>(block.get()));
  }
  template <class Team>
  void run(Team team, uint32_t sample) {
    run_sample(team, reinterpret_cast<const uint8_t*>(block.get()),
               reinterpret_cast<uint8_t*>(work.get()), sample);
  }
};

}  // namespace

void run_block_on_host(const uint8_t* block, uint8_t* work, uint32_t samples) {
  if (samples > reinterpret_cast<const Batch*>(block)->samples)
    throw std::invalid_argument("the block has fewer samples");
  const auto scratch = std::make_unique<Scratch>();
  OneLane lane(*scratch);
  for (uint32_t sample = 0; sample < samples; ++sample) run_sample(lane, block, work, sample);
}

void run_on_host(const BatchBuilder& batch, int lanes) {
  if (lanes < 1 || lanes > most_lanes)
    throw std::invalid_argument("a team on the host has 1 to 64 lanes");
  Memory memory(batch);
  for (uint32_t sample = 0; sample < batch.samples(); ++sample) {
    if (lanes == 1) {
      memory.run(OneLane(*memory.scratch), sample);
      continue;
    }
    Turns turns(lanes);
    std::vector<std::thread> threads;
    for (int lane = 0; lane < lanes; ++lane)
      threads.emplace_back([&, lane] {
        turns.wait_for(lane);
        memory.run(OneOfLanes(*memory.scratch, turns, lane, lanes), sample);
        turns.end_turn();
      });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace fusionloader::device
