// SparseAllReduceTask: sums tensors of which each rank has only some rows, by streaming.
//
// The algorithm is OmniReduce (Fei et al., SIGCOMM 2021). The aggregators are the ranks, or
// servers, which are the last members of the group (servers/server_group.h). Each aggregator owns a
// share of the rows (plan/ir/row_streams.h), in several streams that progress independently:
//
//   rank                                    owner of a stream
//   its first rows, "my next is 9"    ->    waits for all that it asks
//                                     <-    rows 0 to 5 of the sum, "next is 6"
//   (has no row 6: says nothing)            rank 1 has row 6, and sends
//                                     <-    rows 6 to 8, "next is 9"
//   its next rows, "my next is 20"    ->    ...
//                                     <-    "there is no more"
//
// Rows that no rank has are not sent. A rank sends at most one message per stream before the
// aggregator answers it, so memory is bounded, and the results pace the ranks. Each row is summed
// in rank order (executor/sparse/row_aggregator.h).
//
// Let n be the number of ranks, u the number of rows on a rank, v the number of rows in the sum,
// and b the bytes of a row. A rank that aggregates sends (n - 1) / n * u * b + (n - 1) * v / n * b.
// If all rows are present, that is what a ring sends. With servers, a rank sends u * b and receives
// v * b (plan/cost/row_costs.h).
//
// All messages go through UCX, also within a host.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/sparse/row_aggregator.h"
#include "executor/sparse/row_source.h"
#include "executor/sparse/sparse_call.h"
#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

class SparseAllReduceTask : public Task {
 public:
  /// The memory of the rows must stay valid until `keep_alive` is dropped, which happens when the
  /// task is destroyed.
  SparseAllReduceTask(std::shared_ptr<Group> group, SparseCall call,
                      std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);

  /// The memory that a member needs for messages if it owns rows, in bytes.
  static size_t memory_of_owner(const SparseCall& call);

  std::string name() const override;
  bool takes_turn() const override { return true; }
  bool can_fail_alone(bool) const override { return !is_of_device(); }
  bool is_recorded() const override { return true; }
  void describe(FlightRecord& record) const override;
  void report(FlightRecord& record, NameTable& names) const override;

 protected:
  void start(Locked& locked) override;
  void inputs_arrived(Locked& locked) override;
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) override;
  void truncated(Locked& locked, uint32_t token, uint64_t tag) override;
  void worked(Locked& locked, Job& job) override;
  void stranded(Locked& locked, const Error& error) override { go_wrong(locked, error); }
  void timed_out(Locked& locked) override;

  /// A hash of all that the ranks must agree on.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  enum class Kind : uint8_t { kPack, kFold, kUnpack };
  /// The direction of a message: from a rank to the aggregator, or back with the result.
  enum class Message : uint8_t { kRows, kResult };

  class StreamJob : public Job {
   public:
    StreamJob(SparseAllReduceTask& of, Kind does, int rank, size_t number)
        : kind(does), owner(rank), stream(number), task_(of) {}

    const Kind kind;
    const int owner;
    const size_t stream;

   private:
    void work() override;

    SparseAllReduceTask& task_;
  };

  /// This rank's end of a stream that `owner` aggregates. It sends rows when it is asked: `pack`
  /// writes a message, which is sent and ends with the number of the next row. It receives results:
  /// `unpack` writes them to the output, and they tell whether the next row is asked for. A result
  /// may arrive while a message is still being sent.
  struct WorkerStream {
    WorkerStream(SparseAllReduceTask& task, int owner, size_t stream)
        : pack(task, Kind::kPack, owner, stream), unpack(task, Kind::kUnpack, owner, stream) {}

    // The rows that it sends.
    StreamJob pack;
    bool is_asked = true;     ///< asked for rows, and has not begun to pack them
    bool is_sending = false;  ///< packs or sends rows
    bool takes_all = false;   ///< whether the next message has all rows, also those that are zero
    uint64_t next = 0;        ///< position of its next row; only `pack` changes it
    /// Position that the aggregator may ask for; kEnd: none.
    uint64_t announced = RowStreams::kEnd;
    std::unique_ptr<std::byte[]> out;
    size_t out_bytes = 0;

    // The results that it receives.
    StreamJob unpack;
    std::unique_ptr<std::byte[]> in;                  ///< null: this rank is the aggregator
    std::vector<std::span<const std::byte>> results;  ///< input of `unpack`
    uint64_t from = 0;                                ///< position at which the next result begins
    RowHeader header;                                 ///< header of the last of `results`
    RowVolume seen;                                   ///< rows given and summed so far
    bool is_malformed = false;
  };

  /// A stream that this rank aggregates.
  struct AggregatorStream {
    AggregatorStream(SparseAllReduceTask& task, int rank, size_t stream,
                     const RowAggregator::Rows& rows, int world_size)
        : fold(task, Kind::kFold, rank, stream), sum(rows, world_size) {}

    StreamJob fold;
    RowAggregator sum;
    std::vector<std::unique_ptr<std::byte[]>> in;  ///< by rank; null for this one
    std::vector<std::span<const std::byte>> answers;
    size_t awaited = 0;  ///< number of answers that have not arrived
    size_t open = 0;     ///< number of uses of the last result that continue
    int malformed = -1;  ///< rank whose message is malformed
  };

  WorkerStream& worker(int owner, size_t stream) { return *worker_streams_[index(owner, stream)]; }
  size_t index(int owner, size_t stream) const {
    return static_cast<size_t>(owner) * streams() + stream;
  }
  size_t streams() const { return call_.layout.streams.streams(); }
  int owners() const { return call_.layout.streams.owners(); }
  int member_of(int owner) const { return call_.member_of(owner, group().world_size()); }
  /// The number of this member among the owners; -1: it owns no rows.
  int own_share() const { return std::max(group().rank() - member_of(0), -1); }
  bool has_rows() const { return group().rank() < call_.ranks; }

  void prepare();
  // Run in jobs, without the lock.
  void pack(WorkerStream& worker, int owner, size_t stream);
  void fold(AggregatorStream& aggregator);
  void unpack(WorkerStream& worker, int owner, size_t stream);

  void pack_if_asked(Locked& locked, WorkerStream& worker);
  void packed(Locked& locked, WorkerStream& worker);
  void answered(Locked& locked, AggregatorStream& aggregator, int rank,
                std::span<const std::byte> bytes);
  void ask(Locked& locked, AggregatorStream& aggregator);
  void fold_if_ready(Locked& locked, AggregatorStream& aggregator);
  void folded(Locked& locked, AggregatorStream& aggregator);
  void unpacked(Locked& locked, WorkerStream& worker);
  void result_used(Locked& locked, AggregatorStream& aggregator);

  void send(Locked& locked, Message message, int peer, size_t stream,
            std::span<const std::byte> bytes);
  void receive(Locked& locked, Message message, int peer, size_t stream, std::byte* to);
  void finish_if_done(Locked& locked);
  void note_volume() const;
  void go_wrong(Locked& locked, const Error& error);

  const SparseCall call_;
  const std::shared_ptr<void> keep_alive_;
  const uint64_t fingerprint_;
  size_t message_bytes_ = 0;  // the largest length of a message
  std::vector<std::unique_ptr<WorkerStream>> worker_streams_;
  std::vector<std::unique_ptr<AggregatorStream>> aggregator_streams_;  // by stream
  size_t left_ = 0;  // number of stream ends that are not done
  bool has_begun_ = false;
};

}  // namespace q7x2
