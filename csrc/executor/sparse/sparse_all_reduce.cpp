#include "executor/sparse/sparse_all_reduce.h"

#include <utility>

#include "base/digest.h"
#include "kernels/cpu/reduce.h"
#include "ledger/call_signature.h"
#include "ledger/flight_record.h"
#include "ledger/name_table.h"

namespace q7x2 {
namespace {

uint64_t fingerprint_of(const SparseCall& call) {
  Digest digest;
  digest.add(call.agreed);
  digest.add(call.layout.is_dense ? 1 : 0);
  digest.add(call.layout.streams.rows());
  digest.add(call.layout.row_bytes);
  digest.add(static_cast<uint64_t>(call.dtype) << 32 | static_cast<uint64_t>(call.divisor));
  return digest.value();
}

}  // namespace

SparseAllReduceTask::SparseAllReduceTask(std::shared_ptr<Group> group, SparseCall call,
                                         std::shared_ptr<void> keep_alive,
                                         std::chrono::milliseconds timeout)
    : Task(std::move(group), timeout),
      call_(std::move(call)),
      keep_alive_(std::move(keep_alive)),
      fingerprint_(fingerprint_of(call_)) {
  check_reducible(call_.dtype, ReduceKind::kSum, call_.divisor);
  prepare();
}

std::string SparseAllReduceTask::name() const {
  FlightRecord record;
  describe(record);
  record.sequence = sequence();
  return call_signature(record, call_.title) + " on rank " + std::to_string(group().rank()) +
         " of " + std::to_string(group().world_size()) + " in group '" +
         group().membership().name() + "'";
}

void SparseAllReduceTask::describe(FlightRecord& record) const {
  record.collective = Collective::kAllReduce;
  record.dtype = call_.dtype;
  record.input_bytes = record.output_bytes = call_.bytes;
  record.fingerprint = fingerprint_;
}

void SparseAllReduceTask::report(FlightRecord& record, NameTable& names) const {
  record.plan = names.number_of(call_.plan);
}

// ------------------------------------------------------------------------------ jobs, without lock

void SparseAllReduceTask::StreamJob::work() {
  switch (kind) {
    case Kind::kPack:
      task_.pack(task_.worker(owner, stream), owner, stream);
      break;
    case Kind::kFold:
      task_.fold(*task_.aggregator_streams_[stream]);
      break;
    case Kind::kUnpack:
      task_.unpack(task_.worker(owner, stream), owner, stream);
      break;
  }
}

void SparseAllReduceTask::pack(WorkerStream& worker, int owner, size_t stream) {
  const RowSource& rows = *call_.rows;
  const auto next = [&](uint64_t from) {
    return worker.takes_all ? rows.next_of_all(owner, stream, from)
                            : rows.next(owner, stream, from);
  };
  RowWriter writer;
  writer.begin(worker.out.get(), rows.streams().message_rows(), rows.row_bytes());
  // The first message begins with the first row that the rank has, the others with the row that is
  // asked for.
  uint64_t position = worker.next == 0 ? next(0) : worker.next;
  while (position != RowStreams::kEnd && writer.fits(position) &&
         writer.count() < rows.streams().message_rows()) {
    rows.read(owner, stream, position, writer.add(position));
    position = next(position + 1);
  }
  worker.next = position;
  RowHeader how;
  how.next = position;
  worker.out_bytes = writer.finish(how);
}

void SparseAllReduceTask::fold(AggregatorStream& aggregator) {
  for (size_t rank = 0; rank < aggregator.answers.size(); ++rank) {
    const auto bytes = std::exchange(aggregator.answers[rank], {});
    if (bytes.empty()) continue;
    if (!aggregator.sum.take(static_cast<int>(rank), bytes)) {
      aggregator.malformed = static_cast<int>(rank);
      return;
    }
  }
  aggregator.sum.fold();
}

void SparseAllReduceTask::unpack(WorkerStream& worker, int owner, size_t stream) {
  RowSource& rows = *call_.rows;
  for (const std::span<const std::byte> bytes : worker.results) {
    const auto message = RowMessage::read(bytes.data(), bytes.size(), rows.streams().message_rows(),
                                          rows.row_bytes(), worker.from);
    if (!message || (!message->positions.empty() &&
                     message->positions.back() >= end_of_stream(rows.streams(), owner, stream))) {
      worker.is_malformed = true;
      return;
    }
    for (size_t i = 0; i < message->positions.size(); ++i) {
      rows.write(owner, stream, message->positions[i], message->rows + i * rows.row_bytes());
    }
    worker.header = message->header;
    worker.seen.given += message->header.given;
    worker.seen.summed += static_cast<double>(message->positions.size());
    worker.from = message->header.has_more != 0 && !message->positions.empty()
                      ? message->positions.back() + 1
                      : message->header.next;
  }
}

// ----------------------------------------------------------------------------- progress of a call

void SparseAllReduceTask::prepare() {
  const RowLayout& layout = call_.layout;
  const size_t most = layout.streams.message_rows();
  const int own = own_share();
  message_bytes_ = RowWriter::capacity(most, layout.row_bytes);
  const auto memory = [this] {
    return std::make_unique_for_overwrite<std::byte[]>(message_bytes_);
  };
  for (int owner = 0; has_rows() && owner < owners(); ++owner) {
    for (size_t stream = 0; stream < streams(); ++stream) {
      auto& worker =
          *worker_streams_.emplace_back(std::make_unique<WorkerStream>(*this, owner, stream));
      worker.out = memory();
      if (owner != own) worker.in = memory();
    }
  }
  RowAggregator::Rows sums{.dtype = call_.dtype,
                           .bytes = layout.row_bytes,
                           .in_message = most,
                           .divisor = call_.divisor,
                           .is_dense = layout.is_dense};
  for (size_t stream = 0; own >= 0 && stream < streams(); ++stream) {
    sums.end = end_of_stream(layout.streams, own, stream);
    auto& aggregator = *aggregator_streams_.emplace_back(
        std::make_unique<AggregatorStream>(*this, own, stream, sums, call_.ranks));
    aggregator.answers.resize(static_cast<size_t>(call_.ranks));
    aggregator.in.resize(static_cast<size_t>(call_.ranks));
    for (int rank = 0; rank < call_.ranks; ++rank) {
      if (rank != group().rank()) aggregator.in[static_cast<size_t>(rank)] = memory();
    }
  }
  left_ = worker_streams_.size() + aggregator_streams_.size();
}

size_t SparseAllReduceTask::memory_of_owner(const SparseCall& call) {
  const size_t message =
      RowWriter::capacity(call.layout.streams.message_rows(), call.layout.row_bytes);
  // For each stream: one message of every rank, and about as many rows of the sum.
  return call.layout.streams.streams() * 2 * static_cast<size_t>(call.ranks) * message;
}

void SparseAllReduceTask::start(Locked& locked) {
  group().agreement().remember(locked, sequence(), fingerprint_);
  inputs_arrived(locked);
}

void SparseAllReduceTask::inputs_arrived(Locked& locked) {
  if (awaits_inputs(locked) || std::exchange(has_begun_, true)) return;
  for (const auto& aggregator : aggregator_streams_) ask(locked, *aggregator);
  // Each rank begins with the owner after itself, so that not all send to the same one at first.
  for (int i = 1; has_rows() && i <= owners() && !is_over(locked); ++i) {
    const int owner = (group().rank() + i) % owners();
    for (size_t stream = 0; stream < streams() && !is_over(locked); ++stream) {
      WorkerStream& its = worker(owner, stream);
      if (its.in) receive(locked, Message::kResult, member_of(owner), stream, its.in.get());
      pack_if_asked(locked, its);
    }
  }
}

void SparseAllReduceTask::pack_if_asked(Locked& locked, WorkerStream& worker) {
  if (!worker.is_asked || worker.is_sending) return;
  worker.is_asked = false;
  worker.is_sending = true;
  enqueue(locked, worker.pack, message_bytes_);
}

void SparseAllReduceTask::packed(Locked& locked, WorkerStream& worker) {
  const std::span<const std::byte> bytes(worker.out.get(), worker.out_bytes);
  worker.announced = worker.next;
  if (worker.in) {
    send(locked, Message::kRows, member_of(worker.pack.owner), worker.pack.stream, bytes);
    return;
  }
  worker.is_sending = false;  // the aggregator is this process, and reads the rows in place
  answered(locked, *aggregator_streams_[worker.pack.stream], group().rank(), bytes);
}

void SparseAllReduceTask::answered(Locked& locked, AggregatorStream& aggregator, int rank,
                                   std::span<const std::byte> bytes) {
  aggregator.answers[static_cast<size_t>(rank)] = bytes;
  --aggregator.awaited;
  fold_if_ready(locked, aggregator);
}

void SparseAllReduceTask::ask(Locked& locked, AggregatorStream& aggregator) {
  for (int rank = 0; rank < call_.ranks && !is_over(locked); ++rank) {
    if (!aggregator.sum.asks(rank)) continue;
    ++aggregator.awaited;
    std::byte* const to = aggregator.in[static_cast<size_t>(rank)].get();
    if (to != nullptr) receive(locked, Message::kRows, rank, aggregator.fold.stream, to);
  }
}

void SparseAllReduceTask::fold_if_ready(Locked& locked, AggregatorStream& aggregator) {
  if (aggregator.awaited > 0 || aggregator.open > 0) return;
  if (aggregator.sum.frontier() == RowStreams::kEnd) {
    --left_;
    finish_if_done(locked);
    return;
  }
  enqueue(locked, aggregator.fold, message_bytes_ * static_cast<size_t>(call_.ranks));
}

void SparseAllReduceTask::folded(Locked& locked, AggregatorStream& aggregator) {
  if (aggregator.malformed >= 0) {
    group().agreement().disagree(locked, *this, aggregator.malformed);
    return;
  }
  const int ranks = call_.ranks;
  const auto messages = aggregator.sum.messages();
  aggregator.open =
      messages.size() * static_cast<size_t>(has_rows() ? ranks - 1 : ranks) + (has_rows() ? 1 : 0);
  if (aggregator.sum.frontier() != RowStreams::kEnd) ask(locked, aggregator);
  for (const std::span<const std::byte> bytes : messages) {
    for (int i = 1; i <= ranks && !is_over(locked); ++i) {
      const int rank = (group().rank() + i) % ranks;
      if (rank == group().rank()) continue;
      send(locked, Message::kResult, rank, aggregator.fold.stream, bytes);
    }
  }
  if (is_over(locked) || !has_rows()) return;
  WorkerStream& mine = worker(own_share(), aggregator.fold.stream);
  mine.results.assign(messages.begin(), messages.end());
  enqueue(locked, mine.unpack, message_bytes_ * messages.size());
}

void SparseAllReduceTask::unpacked(Locked& locked, WorkerStream& worker) {
  const int owner = worker.unpack.owner;
  const size_t stream = worker.unpack.stream;
  if (worker.is_malformed) {
    group().agreement().disagree(locked, *this, member_of(owner));
    return;
  }
  const RowHeader& header = worker.header;
  const bool is_end = header.has_more == 0 && header.next == RowStreams::kEnd;
  if (is_end) {
    --left_;
  } else if (worker.in) {
    receive(locked, Message::kResult, member_of(owner), stream, worker.in.get());
  }
  if (header.next != RowStreams::kEnd && header.next == worker.announced) {
    worker.announced = RowStreams::kEnd;
    worker.is_asked = true;
    worker.takes_all = header.takes_all != 0;
    pack_if_asked(locked, worker);
  }
  if (!worker.in) {
    result_used(locked, *aggregator_streams_[stream]);
  } else {
    finish_if_done(locked);
  }
}

void SparseAllReduceTask::result_used(Locked& locked, AggregatorStream& aggregator) {
  --aggregator.open;
  fold_if_ready(locked, aggregator);
}

void SparseAllReduceTask::worked(Locked& locked, Job& job) {
  job.check();
  auto& done = static_cast<StreamJob&>(job);
  switch (done.kind) {
    case Kind::kPack:
      packed(locked, worker(done.owner, done.stream));
      break;
    case Kind::kFold:
      folded(locked, *aggregator_streams_[done.stream]);
      break;
    case Kind::kUnpack:
      unpacked(locked, worker(done.owner, done.stream));
      break;
  }
}

void SparseAllReduceTask::finish_if_done(Locked& locked) {
  if (left_ != 0 || group().agreement().finds_leftover(locked)) return;
  note_volume();
  finish(locked);
}

void SparseAllReduceTask::note_volume() const {
  if (!call_.census || !has_rows()) return;
  RowVolume rows;
  for (const auto& worker : worker_streams_) {
    rows.given += worker->seen.given;
    rows.summed += worker->seen.summed;
  }
  const auto bytes = static_cast<double>(call_.layout.row_bytes);
  call_.census->note({.given = rows.given * bytes, .summed = rows.summed * bytes});
}

void SparseAllReduceTask::timed_out(Locked& locked) {
  const Error error = timeout_error(locked);
  fail(locked, error);
  group().fail(locked, error);
}

void SparseAllReduceTask::go_wrong(Locked& locked, const Error& error) {
  if (!is_over(locked)) group().fail_call(locked, *this, error);
}

}  // namespace q7x2
