// The compressed all-reduce over a process group that knows no codecs: Gloo, NCCL.
//
// As with q7x2's own transport, rank r owns the r-th part: it receives every rank's message of that
// part, adds them up in rank order, and sends the sum, encoded again, to all ranks.
//
//   two collectives: an all-to-all and an all-gather, of the messages
//   two more, of their lengths, before each of these, for codecs whose messages vary in length
//
// Messages are encoded on the CPU.
#pragma once

#include <vector>

#include "comm_hooks/run/hook.h"
#include "executor/call/block_coder.h"

namespace q7x2 {

/// The all-reduce of one tensor. The steps must be called in the order in which they are declared.
class StockAllReduce {
 public:
  /// Maximum number of collectives for any codec.
  static constexpr size_t kLanes = 4;

  /// `tensor`: one dimension, contiguous; replaced by the sum. `errors`: fp32, as many elements;
  /// they are added, and then receive the new errors. May be undefined.
  StockAllReduce(std::shared_ptr<const Codec> codec, CodecKeys keys, at::Tensor tensor,
                 at::Tensor errors, int rank, int size);

  /// Empty if the lengths are known.
  std::vector<HookCollective> exchange_lengths();
  HookCollective scatter();
  /// Adds up the received messages.
  void reduce();
  /// Empty if the lengths are known.
  std::vector<HookCollective> gather_lengths();
  HookCollective gather();
  void finish();

 private:
  struct Part {
    int64_t first = 0;
    int64_t count = 0;
  };
  c10::intrusive_ptr<c10d::Backend> backend(c10d::ProcessGroup& group) const;
  Part part(int rank) const;
  BlockCoder::Place place(const Part& part) const;
  std::byte* elements(const Part& part) const;

  const at::Tensor tensor_;
  const at::Tensor errors_;
  const int rank_;
  const int size_;
  at::Tensor values_;       // `tensor` on the CPU
  at::Tensor host_errors_;  // `errors` on the CPU
  Coding coding_;
  std::unique_ptr<BlockCoder> coder_;
  at::Tensor outgoing_;  // messages, one after the other
  at::Tensor incoming_;
  std::vector<int64_t> out_lengths_;  // by rank
  std::vector<int64_t> in_lengths_;
  at::Tensor out_length_tensor_;
  at::Tensor in_length_tensor_;
};

}  // namespace q7x2
