// BlockSparse: reduces each gradient in the way that suits its density.
//
//   sparse gradient (nn.Embedding(sparse=True))   rows, by owner
//   dense, few blocks that are not zero           blocks, by owner
//   dense, most blocks are not zero               all-reduce
//
// Rows and blocks are sent to their owners as executor/sparse/sparse_all_reduce.h describes.
//
// The density of a gradient is measured in its mean, which is bit-identical on all ranks: so they
// make the same choice without a message. A gradient of unknown density is sent in blocks, which
// costs little even if it is dense. Neighbours in a bucket that are reduced in the same way share
// one collective.
#include "comm_hooks/methods/block_sparse.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "backend/process_group.h"
#include "base/error.h"
#include "executor/sparse/row_source.h"
#include "kernels/cpu/zero_rows.h"

namespace q7x2 {
namespace {

/// The share of blocks that are not zero.
double density_of(const at::Tensor& flat) {
  const auto in_block =
      static_cast<int64_t>(BlockRows::kBytes / static_cast<size_t>(flat.element_size()));
  const int64_t blocks = (flat.numel() + in_block - 1) / in_block;
  int64_t used = 0;
  if (flat.is_cpu()) {
    const auto* from = static_cast<const std::byte*>(flat.const_data_ptr());
    for (size_t left = flat.nbytes(); left > 0;) {
      const size_t bytes = std::min(left, BlockRows::kBytes);
      used += is_zero_bits(from, bytes) ? 0 : 1;
      from += bytes;
      left -= bytes;
    }
  } else {
    const at::Tensor padded = at::constant_pad_nd(flat, {0, blocks * in_block - flat.numel()});
    used = padded.view({blocks, in_block}).ne(0).any(1).sum().item<int64_t>();
  }
  return static_cast<double>(used) / static_cast<double>(blocks);
}

HookCollective sum_of_blocks(const at::Tensor& message) {
  return {[message](c10d::ProcessGroup& group) {
            const auto backend = group.getBackend(message.device().type());
            auto* const ours = dynamic_cast<ProcessGroupQ7x2*>(backend.get());
            if (ours == nullptr) {
              throw Error(ErrorCode::kInvalidArgument, "BlockSparse needs a process group of q7x2");
            }
            std::vector<at::Tensor> tensors{message};
            CodedOptions how;
            how.codec = "blocks";
            return ours->coded_all_reduce(tensors, how);
          },
          message.nbytes()};
}

class BlockSparse final : public Hook {
 public:
  BlockSparse(const HookContext& context, double dense_above)
      : Hook(context), dense_above_(dense_above) {}

  Phases reduce(Bucket& bucket) override {
    bucket.buffer.mul_(1.0 / context_.world_size);
    if (bucket.buffer.is_sparse()) {
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      co_return;
    }
    co_await bucket.all(sums(bucket), Rest::kNone);
    const PhaseTimer timer = bucket.time("measure");
    for (const Gradient& gradient : bucket.gradients) {
      is_dense_[gradient.parameter] = density_of(gradient.flat) >= dense_above_;
    }
  }

 private:
  std::vector<HookCollective> sums(const Bucket& bucket) const {
    std::vector<HookCollective> sums;
    int64_t begin = 0;
    for (size_t i = 0; i < bucket.gradients.size();) {
      const bool is_dense = is_dense_of(bucket.gradients[i]);
      int64_t numel = 0;
      for (; i < bucket.gradients.size() && is_dense_of(bucket.gradients[i]) == is_dense; ++i) {
        numel += bucket.gradients[i].flat.numel();
      }
      const at::Tensor run = bucket.buffer.narrow(0, begin, numel);
      sums.push_back(is_dense ? HookCollective::sum(run) : sum_of_blocks(run));
      begin += numel;
    }
    return sums;
  }

  bool is_dense_of(const Gradient& gradient) const {
    const auto known = is_dense_.find(gradient.parameter);
    return known != is_dense_.end() && known->second;
  }

  const double dense_above_;
  std::unordered_map<size_t, bool> is_dense_;  // by parameter
};

}  // namespace

std::unique_ptr<Hook> make_block_sparse(const HookContext& context, double dense_above) {
  return std::make_unique<BlockSparse>(context, dense_above);
}

}  // namespace q7x2
