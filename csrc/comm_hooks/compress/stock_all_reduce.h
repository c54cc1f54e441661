// The compressed all-reduce over a process group that knows nothing of codecs: Gloo, NCCL.
//
// As over q7x2's own transport, rank r owns the r-th part: it receives every rank's message of that
// part, adds them up in rank order, and sends the sum, encoded once more, to everybody.
//
//   two collectives: an all-to-all and an all-gather, of the messages
//   two more, of their lengths, before each of these, for codecs whose messages vary in length
//
// Messages are made on the CPU.
#pragma once

#include <vector>

#include "comm_hooks/run/hook.h"
#include "executor/call/block_coder.h"

namespace q7x2 {

/// Of one tensor. The steps are to be taken in the order in which they are declared.
class StockAllReduce {
 public:
  /// At most, for any codec.
  static constexpr size_t kLanes = 4;

  /// `tensor`: of one dimension, contiguous; replaced by the sum. `errors`: as many elements, fp32,
  /// added, and what is lost kept in them; may be undefined.
  StockAllReduce(std::shared_ptr<const Codec> codec, CodecKeys keys, at::Tensor tensor,
                 at::Tensor errors, int rank, int size);

  /// Empty where the lengths are known.
  std::vector<HookCollective> exchange_lengths();
  HookCollective scatter();
  /// Adds up what came.
  void reduce();
  /// Empty where the lengths are known.
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
  at::Tensor host_errors_;  // `errors` there
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
