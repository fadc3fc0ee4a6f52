#include "worker/remote_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

namespace fusionloader {
namespace {

uint32_t first_of(const Claim& claim) { return claim.first * claim.header().tiny_size; }

}  // namespace

RemoteRows::RemoteRows(DatasetTable* table, size_t received_bytes,
                       const std::optional<ConvertSpec>& convert, int channels, SimdLevel simd)
    : table_(table), received_bytes_(received_bytes), row_bytes_(received_bytes), plane_(0) {
  if (received_bytes == 0) throw std::invalid_argument("a result has at least one byte");
  if (!convert) return;
  if (channels < 1 || received_bytes % static_cast<size_t>(channels) != 0)
    throw std::invalid_argument("levels come in planes of equal size");
  plane_ = received_bytes / static_cast<size_t>(channels);
  converter_ =
      std::make_unique<const Converter>(*convert, static_cast<int>(plane_), 1, channels, simd);
  row_bytes_ = converter_->result_bytes();
}

uint32_t RemoteRows::samples(const Claim& claim) {
  const BatchHeader& header = claim.header();
  return std::min((claim.first + claim.count) * header.tiny_size, header.samples) - first_of(claim);
}

RemoteRows::Paths RemoteRows::paths(const Claim& claim) const {
  const uint32_t begin = first_of(claim);
  Paths made;
  const auto append = [&](auto number) {
    made.samples.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (uint32_t i = 0; i < samples(claim); ++i) {
    const SampleEntry entry = claim.entry(begin + i);
    const auto item = static_cast<uint64_t>(entry.item);
    if (item >= table_->count || table_->holds_pixels() || table_->holds_ranges() ||
        *table_->path(item) != '/')
      return {};
    const size_t before = made.paths.size();
    made.paths += table_->path(item);
    append(entry.key);
    append(entry.group);
    append(uint64_t{table_->size(item).load(std::memory_order_relaxed)});
    append(entry.occurrence);
    append(static_cast<uint32_t>(made.paths.size() - before));
  }
  return made;
}

uint8_t* RemoteRows::row(WorkerQueue& queue, const Claim& claim, uint32_t position) const {
  return queue.rows(claim).data() + claim.entry(position).row * row_bytes_;
}

int64_t* RemoteRows::targets(WorkerQueue& queue, const Claim& claim) const {
  const size_t images =
      (claim.header().payload_rows.load() * row_bytes_ + kAlign - 1) / kAlign * kAlign;
  return reinterpret_cast<int64_t*>(queue.rows(claim).data() + images);
}

void RemoteRows::write_targets(WorkerQueue& queue, const Claim& claim) const {
  const uint32_t begin = first_of(claim);
  int64_t* targets = this->targets(queue, claim);
  for (uint32_t i = 0; i < samples(claim); ++i) {
    const SampleEntry entry = claim.entry(begin + i);
    targets[entry.row] = table_->target(static_cast<uint64_t>(entry.item));
  }
}

void RemoteRows::write(WorkerQueue& queue, const Claim& claim, const uint8_t* results) const {
  const uint32_t begin = first_of(claim);
  for (uint32_t i = 0; i < samples(claim); ++i, results += received_bytes_) {
    uint8_t* to = row(queue, claim, begin + i);
    if (converter_)
      converter_->row(0, {results, plane_}, to);
    else
      std::memcpy(to, results, row_bytes_);
  }
  write_targets(queue, claim);
}

}  // namespace fusionloader
