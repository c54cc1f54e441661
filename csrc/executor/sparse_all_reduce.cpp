#include "executor/sparse_all_reduce.h"

#include <utility>

#include "base/digest.h"
#include "kernels/reduce.h"
#include "ledger/call_signature.h"
#include "ledger/flight_record.h"
#include "ledger/name_table.h"
#include "transport/runtime.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

// A request's token.
constexpr uint32_t kPeerBits = tag::kSourceBits;
constexpr uint32_t kStreamBits = 4;
constexpr uint32_t kStreamMask = (1U << kStreamBits) - 1;
static_assert(RowStreams::kMost <= kStreamMask);

uint64_t fingerprint_of(const SparseCall& call) {
  Digest digest;
  digest.add(call.title);
  digest.add(call.agreed);
  digest.add(call.rows->streams().rows());
  digest.add(call.rows->row_bytes());
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
         " of " + std::to_string(group().world_size()) + " in group '" + group().name() + "'";
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
  // The first message looks for the first row, later ones begin with the row that is asked for.
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
    if (!message ||
        (!message->positions.empty() &&
         rows.streams().row(owner, stream, message->positions.back()) >= rows.streams().rows())) {
      worker.is_malformed = true;
      return;
    }
    for (size_t i = 0; i < message->positions.size(); ++i) {
      rows.write(owner, stream, message->positions[i], message->rows + i * rows.row_bytes());
    }
    worker.header = message->header;
    worker.from = message->header.has_more != 0 && !message->positions.empty()
                      ? message->positions.back() + 1
                      : message->header.next;
  }
}

// -------------------------------------------------------------------------------- the life of a
// call

void SparseAllReduceTask::prepare() {
  const int me = group().rank();
  const int n = group().world_size();
  const RowSource& rows = *call_.rows;
  const size_t most = rows.streams().message_rows();
  message_bytes_ = RowWriter::capacity(most, rows.row_bytes());
  const auto memory = [this] {
    return std::make_unique_for_overwrite<std::byte[]>(message_bytes_);
  };
  for (int owner = 0; owner < n; ++owner) {
    for (size_t stream = 0; stream < streams(); ++stream) {
      auto& worker =
          *worker_streams_.emplace_back(std::make_unique<WorkerStream>(*this, owner, stream));
      worker.out = memory();
      if (owner != me) worker.in = memory();
    }
  }
  const RowAggregator::Rows sums{.dtype = call_.dtype,
                                 .bytes = rows.row_bytes(),
                                 .in_message = most,
                                 .divisor = call_.divisor,
                                 .is_dense = rows.is_dense()};
  for (size_t stream = 0; stream < streams(); ++stream) {
    auto& aggregator = *aggregator_streams_.emplace_back(
        std::make_unique<AggregatorStream>(*this, me, stream, sums, n));
    aggregator.answers.resize(static_cast<size_t>(n));
    aggregator.in.resize(static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) {
      if (rank != me) aggregator.in[static_cast<size_t>(rank)] = memory();
    }
  }
  left_ = worker_streams_.size() + aggregator_streams_.size();
}

void SparseAllReduceTask::start(Locked& locked) {
  group().remember(locked, sequence(), fingerprint_);
  inputs_arrived(locked);
}

void SparseAllReduceTask::inputs_arrived(Locked& locked) {
  if (awaits_inputs(locked) || std::exchange(has_begun_, true)) return;
  for (const auto& aggregator : aggregator_streams_) ask(locked, *aggregator);
  // Each rank begins with the next one, so that not all send to the same.
  const int n = group().world_size();
  for (int i = 1; i <= n && !is_over(locked); ++i) {
    const int owner = (group().rank() + i) % n;
    for (size_t stream = 0; stream < streams() && !is_over(locked); ++stream) {
      WorkerStream& its = worker(owner, stream);
      if (its.in) receive(locked, Message::kResult, owner, stream, its.in.get());
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
    send(locked, Message::kRows, worker.pack.owner, worker.pack.stream, bytes);
    return;
  }
  worker.is_sending = false;  // the aggregator here reads the rows where they lie
  answered(locked, *aggregator_streams_[worker.pack.stream], group().rank(), bytes);
}

void SparseAllReduceTask::answered(Locked& locked, AggregatorStream& aggregator, int rank,
                                   std::span<const std::byte> bytes) {
  aggregator.answers[static_cast<size_t>(rank)] = bytes;
  --aggregator.awaited;
  fold_if_ready(locked, aggregator);
}

void SparseAllReduceTask::ask(Locked& locked, AggregatorStream& aggregator) {
  for (int rank = 0; rank < group().world_size() && !is_over(locked); ++rank) {
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
  enqueue(locked, aggregator.fold, message_bytes_ * static_cast<size_t>(group().world_size()));
}

void SparseAllReduceTask::folded(Locked& locked, AggregatorStream& aggregator) {
  if (aggregator.malformed >= 0) {
    group().disagree(locked, *this, aggregator.malformed);
    return;
  }
  const int n = group().world_size();
  const auto messages = aggregator.sum.messages();
  aggregator.open = messages.size() * static_cast<size_t>(n - 1) + 1;
  if (aggregator.sum.frontier() != RowStreams::kEnd) ask(locked, aggregator);
  for (const std::span<const std::byte> bytes : messages) {
    for (int i = 1; i < n && !is_over(locked); ++i) {
      send(locked, Message::kResult, (group().rank() + i) % n, aggregator.fold.stream, bytes);
    }
  }
  if (is_over(locked)) return;
  WorkerStream& mine = worker(group().rank(), aggregator.fold.stream);
  mine.results.assign(messages.begin(), messages.end());
  enqueue(locked, mine.unpack, message_bytes_ * messages.size());
}

void SparseAllReduceTask::unpacked(Locked& locked, WorkerStream& worker) {
  const int owner = worker.unpack.owner;
  const size_t stream = worker.unpack.stream;
  if (worker.is_malformed) {
    group().disagree(locked, *this, owner);
    return;
  }
  const RowHeader& header = worker.header;
  const bool is_end = header.has_more == 0 && header.next == RowStreams::kEnd;
  if (is_end) {
    --left_;
  } else if (worker.in) {
    receive(locked, Message::kResult, owner, stream, worker.in.get());
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
  if (left_ == 0 && !group().finds_leftover(locked)) finish(locked);
}

void SparseAllReduceTask::end_group(Locked& locked, const Error& error) {
  fail(locked, error);
  group().fail(locked, error);
}

// -----------------------------------------------------------------------------------------
// messages

namespace {

struct Token {
  bool is_result;
  bool is_receive;
  int peer;
  size_t stream;

  uint32_t packed() const {
    return (is_result ? 2U : 0U) | (is_receive ? 1U : 0U) | static_cast<uint32_t>(stream) << 2 |
           static_cast<uint32_t>(peer) << (2 + kStreamBits);
  }
  static Token of(uint32_t bits) {
    return {(bits & 2U) != 0, (bits & 1U) != 0, static_cast<int>(bits >> (2 + kStreamBits)),
            (bits >> 2) & kStreamMask};
  }
};
static_assert(2 + kStreamBits + kPeerBits <= 32);

/// Its number among the messages of the call.
uint64_t number_of(bool is_result, size_t stream) {
  return (is_result ? RowStreams::kMost : 0) + stream;
}

}  // namespace

void SparseAllReduceTask::send(Locked& locked, Message message, int peer, size_t stream,
                               std::span<const std::byte> bytes) {
  const bool is_result = message == Message::kResult;
  const uint64_t number = number_of(is_result, stream);
  const uint64_t tag =
      tag::collective(0, group().rank(), sequence(), 0, number,
                      tag::turned(fingerprint_, static_cast<int>(number)), group().world_size());
  const Token token{is_result, /*is_receive=*/false, peer, stream};
  group().send(locked, *this, token.packed(), peer, tag, bytes.data(), bytes.size(),
               group().wire(peer));
}

void SparseAllReduceTask::receive(Locked& locked, Message message, int peer, size_t stream,
                                  std::byte* to) {
  const bool is_result = message == Message::kResult;
  const int n = group().world_size();
  const uint64_t tag =
      tag::collective(group().slot(), peer, sequence(), 0, number_of(is_result, stream), 0, n);
  const Token token{is_result, /*is_receive=*/true, peer, stream};
  group().receive(locked, *this, token.packed(), peer, tag, ~tag::fingerprint_mask(n), to,
                  message_bytes_, group().wire(peer));
}

void SparseAllReduceTask::completed(Locked& locked, uint32_t bits, size_t length, uint64_t tag) {
  const Token token = Token::of(bits);
  if (token.is_receive) {
    const uint64_t number = number_of(token.is_result, token.stream);
    const uint64_t expected = tag::turned(fingerprint_, static_cast<int>(number));
    if (((tag ^ expected) & tag::fingerprint_mask(group().world_size())) != 0 || length == 0) {
      group().disagree(locked, *this, token.peer);
      return;
    }
    if (token.is_result) {
      WorkerStream& its = worker(token.peer, token.stream);
      its.results.assign(1, {its.in.get(), length});
      enqueue(locked, its.unpack, length);
    } else {
      AggregatorStream& aggregator = *aggregator_streams_[token.stream];
      answered(locked, aggregator, token.peer,
               {aggregator.in[static_cast<size_t>(token.peer)].get(), length});
    }
  } else if (token.is_result) {
    result_used(locked, *aggregator_streams_[token.stream]);
  } else {
    WorkerStream& its = worker(token.peer, token.stream);
    its.is_sending = false;
    pack_if_asked(locked, its);
    finish_if_done(locked);
  }
}

void SparseAllReduceTask::truncated(Locked& locked, uint32_t bits, uint64_t) {
  group().disagree(locked, *this, Token::of(bits).peer);
}

}  // namespace q7x2
