#include "worker/remote_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "queue/parts.hpp"

namespace fusionloader {

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

uint32_t RemoteRows::samples(const Claim& claim, uint32_t tiny_batch) {
  const BatchHeader& header = claim.header();
  const uint32_t begin = tiny_batch * header.tiny_size;
  return std::min(begin + header.tiny_size, header.samples) - begin;
}

RemoteRows::Paths RemoteRows::paths(const Claim& claim, uint32_t tiny_batch) const {
  const uint32_t begin = tiny_batch * claim.header().tiny_size;
  Paths made;
  const auto append = [&](auto number) {
    made.samples.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (uint32_t i = 0; i < samples(claim, tiny_batch); ++i) {
    const SampleEntry entry = claim.entry(begin + i);
    const auto item = static_cast<uint64_t>(entry.item);
    if (item >= table_->count || table_->holds_pixels() || *table_->path(item) != '/') return {};
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

void RemoteRows::write_targets(WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch) const {
  const uint32_t begin = tiny_batch * claim.header().tiny_size;
  int64_t* targets = this->targets(queue, claim);
  for (uint32_t i = 0; i < samples(claim, tiny_batch); ++i) {
    const SampleEntry entry = claim.entry(begin + i);
    targets[entry.row] = table_->target(static_cast<uint64_t>(entry.item));
  }
}

void RemoteRows::write(WorkerQueue& queue, const Claim& claim, uint32_t position,
                       const uint8_t* result) const {
  uint8_t* to = row(queue, claim, position);
  if (converter_)
    converter_->row(0, {result, plane_}, to);
  else
    std::memcpy(to, result, row_bytes_);
}

void RemoteRows::finish(WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch,
                        uint64_t write_ns, uint64_t read_bytes) const {
  write_targets(queue, claim, tiny_batch);
  std::vector<uint64_t> ns(static_cast<size_t>(Part::write) + 1);
  ns.back() = write_ns;
  queue.add_part_ns(ns);
  queue.add_reads(read_bytes, {});  // of no cache
  queue.end_samples(claim, tiny_batch, samples(claim, tiny_batch));
  queue.end_span(claim, tiny_batch, 1);
  queue.finish(claim, tiny_batch, TinyBatchState::completed);
}

}  // namespace fusionloader
