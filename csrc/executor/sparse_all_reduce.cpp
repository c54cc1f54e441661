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
      task_.pack(task_.outlet(owner, stream), owner, stream);
      break;
    case Kind::kFold:
      task_.fold(*task_.inlets_[stream]);
      break;
    case Kind::kUnpack:
      task_.unpack(task_.outlet(owner, stream), owner, stream);
      break;
  }
}

void SparseAllReduceTask::pack(Outlet& outlet, int owner, size_t stream) {
  const RowSource& rows = *call_.rows;
  const auto next = [&](uint64_t from) {
    return outlet.takes_all ? rows.next_of_all(owner, stream, from)
                            : rows.next(owner, stream, from);
  };
  RowWriter writer;
  writer.begin(outlet.out.get(), rows.streams().message_rows(), rows.row_bytes());
  // The first message looks for the first row, later ones begin with the row that is asked for.
  uint64_t position = outlet.next == 0 ? next(0) : outlet.next;
  while (position != RowStreams::kEnd && writer.fits(position) &&
         writer.count() < rows.streams().message_rows()) {
    rows.read(owner, stream, position, writer.add(position));
    position = next(position + 1);
  }
  outlet.next = position;
  RowHeader how;
  how.next = position;
  outlet.out_bytes = writer.finish(how);
}

void SparseAllReduceTask::fold(Inlet& inlet) {
  for (size_t rank = 0; rank < inlet.answers.size(); ++rank) {
    const auto bytes = std::exchange(inlet.answers[rank], {});
    if (bytes.empty()) continue;
    if (!inlet.sum.take(static_cast<int>(rank), bytes)) {
      inlet.malformed = static_cast<int>(rank);
      return;
    }
  }
  inlet.sum.fold();
}

void SparseAllReduceTask::unpack(Outlet& outlet, int owner, size_t stream) {
  RowSource& rows = *call_.rows;
  for (const std::span<const std::byte> bytes : outlet.results) {
    const auto message = RowMessage::read(bytes.data(), bytes.size(), rows.streams().message_rows(),
                                          rows.row_bytes(), outlet.from);
    if (!message ||
        (!message->positions.empty() &&
         rows.streams().row(owner, stream, message->positions.back()) >= rows.streams().rows())) {
      outlet.is_malformed = true;
      return;
    }
    for (size_t i = 0; i < message->positions.size(); ++i) {
      rows.write(owner, stream, message->positions[i], message->rows + i * rows.row_bytes());
    }
    outlet.header = message->header;
    outlet.from = message->header.has_more != 0 && !message->positions.empty()
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
      auto& outlet = *outlets_.emplace_back(std::make_unique<Outlet>(*this, owner, stream));
      outlet.out = memory();
      if (owner != me) outlet.in = memory();
    }
  }
  const RowAggregator::Rows sums{.dtype = call_.dtype,
                                 .bytes = rows.row_bytes(),
                                 .in_message = most,
                                 .divisor = call_.divisor,
                                 .is_dense = rows.is_dense()};
  for (size_t stream = 0; stream < streams(); ++stream) {
    auto& inlet = *inlets_.emplace_back(std::make_unique<Inlet>(*this, me, stream, sums, n));
    inlet.answers.resize(static_cast<size_t>(n));
    inlet.in.resize(static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) {
      if (rank != me) inlet.in[static_cast<size_t>(rank)] = memory();
    }
  }
  left_ = outlets_.size() + inlets_.size();
}

void SparseAllReduceTask::start(Locked& locked) {
  group().remember(locked, sequence(), fingerprint_);
  inputs_arrived(locked);
}

void SparseAllReduceTask::inputs_arrived(Locked& locked) {
  if (awaits_inputs(locked) || std::exchange(has_begun_, true)) return;
  for (const auto& inlet : inlets_) ask(locked, *inlet);
  // Each rank begins with the next one, so that not all send to the same.
  const int n = group().world_size();
  for (int i = 1; i <= n && !is_over(locked); ++i) {
    const int owner = (group().rank() + i) % n;
    for (size_t stream = 0; stream < streams() && !is_over(locked); ++stream) {
      Outlet& its = outlet(owner, stream);
      if (its.in) receive(locked, Message::kResult, owner, stream, its.in.get());
      pack_if_asked(locked, its);
    }
  }
}

void SparseAllReduceTask::pack_if_asked(Locked& locked, Outlet& outlet) {
  if (!outlet.is_asked || outlet.is_sending) return;
  outlet.is_asked = false;
  outlet.is_sending = true;
  enqueue(locked, outlet.pack, message_bytes_);
}

void SparseAllReduceTask::packed(Locked& locked, Outlet& outlet) {
  const std::span<const std::byte> bytes(outlet.out.get(), outlet.out_bytes);
  outlet.announced = outlet.next;
  if (outlet.in) {
    send(locked, Message::kRows, outlet.pack.owner, outlet.pack.stream, bytes);
    return;
  }
  outlet.is_sending = false;  // the aggregator here reads the rows where they lie
  answered(locked, *inlets_[outlet.pack.stream], group().rank(), bytes);
}

void SparseAllReduceTask::answered(Locked& locked, Inlet& inlet, int rank,
                                   std::span<const std::byte> bytes) {
  inlet.answers[static_cast<size_t>(rank)] = bytes;
  --inlet.awaited;
  fold_if_ready(locked, inlet);
}

void SparseAllReduceTask::ask(Locked& locked, Inlet& inlet) {
  for (int rank = 0; rank < group().world_size() && !is_over(locked); ++rank) {
    if (!inlet.sum.asks(rank)) continue;
    ++inlet.awaited;
    std::byte* const to = inlet.in[static_cast<size_t>(rank)].get();
    if (to != nullptr) receive(locked, Message::kRows, rank, inlet.fold.stream, to);
  }
}

void SparseAllReduceTask::fold_if_ready(Locked& locked, Inlet& inlet) {
  if (inlet.awaited > 0 || inlet.open > 0) return;
  if (inlet.sum.frontier() == RowStreams::kEnd) {
    --left_;
    finish_if_done(locked);
    return;
  }
  enqueue(locked, inlet.fold, message_bytes_ * static_cast<size_t>(group().world_size()));
}

void SparseAllReduceTask::folded(Locked& locked, Inlet& inlet) {
  if (inlet.malformed >= 0) {
    group().disagree(locked, *this, inlet.malformed);
    return;
  }
  const int n = group().world_size();
  const auto messages = inlet.sum.messages();
  inlet.open = messages.size() * static_cast<size_t>(n - 1) + 1;
  if (inlet.sum.frontier() != RowStreams::kEnd) ask(locked, inlet);
  for (const std::span<const std::byte> bytes : messages) {
    for (int i = 1; i < n && !is_over(locked); ++i) {
      send(locked, Message::kResult, (group().rank() + i) % n, inlet.fold.stream, bytes);
    }
  }
  if (is_over(locked)) return;
  Outlet& mine = outlet(group().rank(), inlet.fold.stream);
  mine.results.assign(messages.begin(), messages.end());
  enqueue(locked, mine.unpack, message_bytes_ * messages.size());
}

void SparseAllReduceTask::unpacked(Locked& locked, Outlet& outlet) {
  const int owner = outlet.unpack.owner;
  const size_t stream = outlet.unpack.stream;
  if (outlet.is_malformed) {
    group().disagree(locked, *this, owner);
    return;
  }
  const RowHeader& header = outlet.header;
  const bool is_end = header.has_more == 0 && header.next == RowStreams::kEnd;
  if (is_end) {
    --left_;
  } else if (outlet.in) {
    receive(locked, Message::kResult, owner, stream, outlet.in.get());
  }
  if (header.next != RowStreams::kEnd && header.next == outlet.announced) {
    outlet.announced = RowStreams::kEnd;
    outlet.is_asked = true;
    outlet.takes_all = header.takes_all != 0;
    pack_if_asked(locked, outlet);
  }
  if (!outlet.in) {
    result_used(locked, *inlets_[stream]);
  } else {
    finish_if_done(locked);
  }
}

void SparseAllReduceTask::result_used(Locked& locked, Inlet& inlet) {
  --inlet.open;
  fold_if_ready(locked, inlet);
}

void SparseAllReduceTask::worked(Locked& locked, Job& job) {
  job.check();
  auto& done = static_cast<StreamJob&>(job);
  switch (done.kind) {
    case Kind::kPack:
      packed(locked, outlet(done.owner, done.stream));
      break;
    case Kind::kFold:
      folded(locked, *inlets_[done.stream]);
      break;
    case Kind::kUnpack:
      unpacked(locked, outlet(done.owner, done.stream));
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
      Outlet& its = outlet(token.peer, token.stream);
      its.results.assign(1, {its.in.get(), length});
      enqueue(locked, its.unpack, length);
    } else {
      Inlet& inlet = *inlets_[token.stream];
      answered(locked, inlet, token.peer,
               {inlet.in[static_cast<size_t>(token.peer)].get(), length});
    }
  } else if (token.is_result) {
    result_used(locked, *inlets_[token.stream]);
  } else {
    Outlet& its = outlet(token.peer, token.stream);
    its.is_sending = false;
    pack_if_asked(locked, its);
    finish_if_done(locked);
  }
}

void SparseAllReduceTask::truncated(Locked& locked, uint32_t bits, uint64_t) {
  group().disagree(locked, *this, Token::of(bits).peer);
}

}  // namespace q7x2
