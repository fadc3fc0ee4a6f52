#pragma once
// Rows that another machine has made, written into a batch slot as this machine's workers do.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "convert/convert.hpp"
#include "queue/worker_queue.hpp"
#include "simd/level.hpp"
#include "worker/dataset_table.hpp"

namespace fusionloader {

class RemoteRows {
 public:
  // A result comes as `received_bytes`: as it is, or as 8-bit levels of `channels` planes.
  RemoteRows(DatasetTable* table, size_t received_bytes, const std::optional<ConvertSpec>& convert,
             int channels, SimdLevel simd);

  DatasetTable& table() const { return *table_; }
  size_t received_bytes() const { return received_bytes_; }
  // Of the samples of a tiny-batch, how many it has.
  static uint32_t samples(const Claim& claim, uint32_t tiny_batch);
  // The samples of a tiny-batch as fusionloader/remote/protocol.py encodes them, and the paths of
  // their files; empty where a sample has no file with an absolute path.
  struct Paths {
    std::string samples, paths;
  };
  Paths paths(const Claim& claim, uint32_t tiny_batch) const;
  // Where the results of a tiny-batch's samples go, if they are rows as they come.
  bool receives_rows() const { return converter_ == nullptr; }
  uint8_t* row(WorkerQueue& queue, const Claim& claim, uint32_t position) const;
  // Writes the result of the sample at a position of the claim's mini-batch, from the
  // `received_bytes` at `result`. The caller holds the sample's tiny-batch.
  void write(WorkerQueue& queue, const Claim& claim, uint32_t position,
             const uint8_t* result) const;
  // Writes the targets of a tiny-batch whose results are written, counts its samples, the time that
  // writing took and the bytes that were read for it, and finishes it. The caller holds it, and has
  // checked that the table has its items.
  void finish(WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch, uint64_t write_ns,
              uint64_t read_bytes) const;

 private:
  void write_targets(WorkerQueue& queue, const Claim& claim, uint32_t tiny_batch) const;
  int64_t* targets(WorkerQueue& queue, const Claim& claim) const;
  DatasetTable* table_;
  size_t received_bytes_, row_bytes_, plane_;
  std::unique_ptr<const Converter> converter_;  // none: results are copied
};

}  // namespace fusionloader
