// The messages of a sparse all-reduce (executor/sparse/row_message.h): their tags, and what happens
// when one was received or sent.
#include <cstdint>
#include <span>

#include "executor/sparse/sparse_all_reduce.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

constexpr uint32_t kPeerBits = tag::kSourceBits;
constexpr uint32_t kStreamBits = 4;
constexpr uint32_t kStreamMask = (1U << kStreamBits) - 1;
static_assert(RowStreams::kMost <= kStreamMask);

/// The purpose of a request, packed into its 32-bit token.
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

/// The number of a message's kind and stream within the call, for its tag.
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
  group().messages().send(locked, *this, token.packed(), peer, tag, bytes.data(), bytes.size(),
                          group().links().wire(peer));
}

void SparseAllReduceTask::receive(Locked& locked, Message message, int peer, size_t stream,
                                  std::byte* to) {
  const bool is_result = message == Message::kResult;
  const int n = group().world_size();
  const uint64_t tag =
      tag::collective(group().slot(), peer, sequence(), 0, number_of(is_result, stream), 0, n);
  const Token token{is_result, /*is_receive=*/true, peer, stream};
  group().messages().receive(locked, *this, token.packed(), peer, tag, ~tag::fingerprint_mask(n),
                             to, message_bytes_, group().links().wire(peer));
}

void SparseAllReduceTask::completed(Locked& locked, uint32_t bits, size_t length, uint64_t tag) {
  const Token token = Token::of(bits);
  if (token.is_receive) {
    const uint64_t number = number_of(token.is_result, token.stream);
    const uint64_t expected = tag::turned(fingerprint_, static_cast<int>(number));
    if (((tag ^ expected) & tag::fingerprint_mask(group().world_size())) != 0 || length == 0) {
      group().agreement().disagree(locked, *this, token.peer);
      return;
    }
    if (token.is_result) {
      WorkerStream& its = worker(token.peer - member_of(0), token.stream);
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
    WorkerStream& its = worker(token.peer - member_of(0), token.stream);
    its.is_sending = false;
    pack_if_asked(locked, its);
    finish_if_done(locked);
  }
}

void SparseAllReduceTask::truncated(Locked& locked, uint32_t bits, uint64_t) {
  group().agreement().disagree(locked, *this, Token::of(bits).peer);
}

}  // namespace q7x2
