#include "comm_hooks/compress/stock_all_reduce.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "backend/tensors.h"
#include "base/error.h"

namespace q7x2 {
namespace {

/// Parts begin at multiples of this, which is at least the group size of every codec.
constexpr int64_t kPartGrain = 1024;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

/// Reads the lengths of the ranks' messages. Throws Error(kMismatch) if one is more than `most`
/// bytes or negative.
void read_lengths(const at::Tensor& told, size_t most, std::vector<int64_t>& lengths) {
  const at::Tensor on_host = told.cpu();
  std::copy_n(on_host.const_data_ptr<int64_t>(), lengths.size(), lengths.begin());
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] >= 0 && static_cast<size_t>(lengths[rank]) <= most) continue;
    throw Error(ErrorCode::kMismatch,
                "rank " + std::to_string(rank) + " announced a message of " +
                    std::to_string(lengths[rank]) + " bytes to a hook: expected 0 to " +
                    std::to_string(most),
                static_cast<int>(rank));
  }
}

}  // namespace

StockAllReduce::StockAllReduce(std::shared_ptr<const Codec> codec, CodecKeys keys,
                               at::Tensor tensor, at::Tensor errors, int rank, int size)
    : tensor_(std::move(tensor)),
      errors_(std::move(errors)),
      rank_(rank),
      size_(size),
      values_(tensor_.cpu()) {
  if (errors_.defined()) {
    host_errors_ = errors_.cpu();
    coding_.errors = {host_errors_.mutable_data_ptr<float>()};
  }
  coding_.codec = std::move(codec);
  coding_.keys = keys;
  coder_ = std::make_unique<BlockCoder>(coding_, reducible_dtype(values_),
                                        static_cast<size_t>(std::max<int64_t>(part(0).count, 1)),
                                        values_.nbytes(), true);
  if (coding_.codec->traits().selects) {
    std::vector<float> read(kLargestRead);
    const auto read_sum = [this, &read](size_t first, size_t count) {
      const auto from = static_cast<int64_t>(first);
      const auto length = static_cast<int64_t>(count);
      at::Tensor out = at::from_blob(read.data(), {length}, at::kFloat);
      out.copy_(values_.narrow(0, from, length));
      if (host_errors_.defined()) out.add_(host_errors_.narrow(0, from, length));
      return static_cast<const float*>(read.data());
    };
    coder_->select(read_sum, static_cast<size_t>(values_.numel()));
  }

  const auto slot = static_cast<int64_t>(coder_->max_bytes());
  at::Tensor messages = at::empty({slot * size_}, at::kByte);
  int64_t length = 0;
  for (int owner = 0; owner < size_; ++owner) {
    const Part theirs = part(owner);
    out_lengths_.push_back(
        owner == rank_ ? 0
                       : static_cast<int64_t>(coder_->encode(
                             {elements(theirs), {}, true}, static_cast<size_t>(theirs.count),
                             place(theirs), bytes_of(messages) + length)));
    length += out_lengths_.back();
  }
  outgoing_ = messages.narrow(0, 0, length).to(tensor_.device());
}

c10::intrusive_ptr<c10d::Backend> StockAllReduce::backend(c10d::ProcessGroup& group) const {
  return group.getBackend(tensor_.device().type());
}

StockAllReduce::Part StockAllReduce::part(int rank) const {
  const int64_t numel = tensor_.numel();
  const int64_t equal = (numel + size_ - 1) / size_;
  const int64_t count = (equal + kPartGrain - 1) / kPartGrain * kPartGrain;
  const int64_t first = std::min(count * rank, numel);
  return {first, std::min(count, numel - first)};
}

BlockCoder::Place StockAllReduce::place(const Part& part) const {
  return {static_cast<uint64_t>(part.first),
          coding_.errors.empty() ? nullptr : coding_.errors[0] + part.first};
}

std::byte* StockAllReduce::elements(const Part& part) const {
  return bytes_of(values_) + part.first * values_.element_size();
}

std::vector<HookCollective> StockAllReduce::exchange_lengths() {
  in_lengths_.assign(static_cast<size_t>(size_), 0);
  if (coding_.codec->traits().fixed_size) {
    const auto mine = static_cast<size_t>(part(rank_).count);
    const auto length = static_cast<int64_t>(coding_.codec->max_bytes(mine));
    for (int rank = 0; rank < size_; ++rank) {
      in_lengths_[static_cast<size_t>(rank)] = rank == rank_ ? 0 : length;
    }
    return {};
  }
  out_length_tensor_ = at::tensor(out_lengths_, at::kLong).to(tensor_.device());
  in_length_tensor_ = at::empty_like(out_length_tensor_);
  return {{[this](c10d::ProcessGroup& group) {
             std::vector<int64_t> equal;
             return backend(group)->alltoall_base(in_length_tensor_, out_length_tensor_, equal,
                                                  equal, {});
           },
           out_length_tensor_.nbytes()}};
}

HookCollective StockAllReduce::scatter() {
  if (in_length_tensor_.defined()) {
    read_lengths(in_length_tensor_, coder_->max_bytes(), in_lengths_);
  }
  const int64_t length = std::accumulate(in_lengths_.begin(), in_lengths_.end(), int64_t{0});
  incoming_ = at::empty({length}, outgoing_.options());
  return {[this](c10d::ProcessGroup& group) {
            // Copies, because Gloo moves them.
            std::vector<int64_t> in = in_lengths_;
            std::vector<int64_t> out = out_lengths_;
            return backend(group)->alltoall_base(incoming_, outgoing_, in, out, {});
          },
          outgoing_.nbytes()};
}

void StockAllReduce::reduce() {
  const Part mine = part(rank_);
  const at::Tensor messages = incoming_.cpu();
  std::vector<BlockCoder::Operand> operands;
  int64_t offset = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t length = in_lengths_[static_cast<size_t>(rank)];
    if (rank == rank_) {
      operands.push_back({elements(mine), {}, true});
    } else {
      operands.push_back({nullptr, {bytes_of(messages) + offset, static_cast<size_t>(length)}});
    }
    offset += length;
  }
  at::Tensor message = at::empty({static_cast<int64_t>(coder_->max_bytes())}, at::kByte);
  const size_t length = coder_->fold_to_message(operands, static_cast<size_t>(mine.count),
                                                place(mine), 1, bytes_of(message));
  out_lengths_ = {static_cast<int64_t>(length)};
  outgoing_ = message;
}

std::vector<HookCollective> StockAllReduce::gather_lengths() {
  if (coding_.codec->traits().fixed_size) {
    for (int rank = 0; rank < size_; ++rank) {
      in_lengths_[static_cast<size_t>(rank)] = static_cast<int64_t>(
          coding_.codec->of_sums().max_bytes(static_cast<size_t>(part(rank).count)));
    }
    return {};
  }
  out_length_tensor_ = at::tensor(out_lengths_, at::kLong).to(tensor_.device());
  return {{[this](c10d::ProcessGroup& group) {
             return backend(group)->_allgather_base(in_length_tensor_, out_length_tensor_);
           },
           out_length_tensor_.nbytes()}};
}

HookCollective StockAllReduce::gather() {
  if (in_length_tensor_.defined()) {
    read_lengths(in_length_tensor_, coder_->max_bytes(), in_lengths_);
  }
  const int64_t slot = *std::ranges::max_element(in_lengths_);
  at::Tensor message = at::zeros({slot}, at::kByte);
  message.narrow(0, 0, out_lengths_[0]).copy_(outgoing_.narrow(0, 0, out_lengths_[0]));
  outgoing_ = message.to(tensor_.device());
  incoming_ = at::empty({slot * size_}, outgoing_.options());
  return {[this](c10d::ProcessGroup& group) {
            return backend(group)->_allgather_base(incoming_, outgoing_);
          },
          outgoing_.nbytes()};
}

void StockAllReduce::finish() {
  const at::Tensor messages = incoming_.cpu();
  const int64_t slot = messages.numel() / size_;
  for (int rank = 0; rank < size_; ++rank) {
    const Part theirs = part(rank);
    const auto length = static_cast<size_t>(in_lengths_[static_cast<size_t>(rank)]);
    coder_->decode({bytes_of(messages) + slot * rank, length}, static_cast<size_t>(theirs.count),
                   place(theirs), elements(theirs));
  }
  if (!values_.is_same(tensor_)) tensor_.copy_(values_);
  if (errors_.defined() && !host_errors_.is_same(errors_)) errors_.copy_(host_errors_);
}

}  // namespace q7x2
