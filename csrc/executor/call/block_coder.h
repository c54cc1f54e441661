// BlockCoder: encodes, decodes and sums the coded blocks of one collective.
//
// Codecs work on fp32. Elements of other types are widened once before encoding, and rounded once
// after decoding. Sums are computed in fp32.
//
// Each element has one residual at this rank, in the errors buffer. It is the error of this rank's
// contribution, or, if this rank owns the element, the error of the sum. In both cases it is added
// to what the rank contributes next, so the buffer stays valid when the owner changes. If the rank
// sends elements uncoded, for another rank to add and encode, their residual is zero afterwards.
// The Plan says which op adds the residual.
//
// Several threads may use a coder at once, for blocks of different elements. Each uses its own
// workspace.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/recycled.h"
#include "base/types.h"
#include "kernels/codec/codec.h"
#include "plan/ir/edge_coding.h"

namespace q7x2 {

/// How a collective is compressed.
struct Coding {
  std::shared_ptr<const Codec> codec;  ///< null: it is not compressed
  CodecKeys keys;
  /// For each input region the residuals of its elements. They are added before encoding, and
  /// replaced by the new errors. Empty: no error feedback.
  std::vector<float*> errors;
  /// Whether infinities or NaNs in the result are an error.
  bool refuses_nonfinite = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages are compressed

  explicit operator bool() const { return codec != nullptr; }
};

class BlockCoder {
 public:
  /// `most`: the largest number of elements in a block. `total`: bytes of the longest buffer.
  /// `decodes_sums`: whether decoded messages are sums instead of contributions. `coding` must
  /// outlive the coder.
  BlockCoder(const Coding& coding, DType dtype, size_t most, size_t total, bool decodes_sums);

  /// Mixed into the rounding key of sums. If sums used the random numbers of the owner's
  /// contribution, ties in a vote of signs would always follow the owner.
  static constexpr uint64_t kSumRounding = 1;

  /// The position of a block: the index of its first element in the tensor, and its errors. Null:
  /// no errors.
  struct Place {
    uint64_t first = 0;
    float* errors = nullptr;
    /// Adds the errors to the elements. If false, new errors are only added to the old ones.
    bool takes_residual = true;
  };
  /// A contribution to a sum: elements, or a message.
  struct Operand {
    const std::byte* elements = nullptr;
    std::span<const std::byte> message;
    /// Whether they are elements of the input, which `select` saw, and not a partial sum.
    bool is_input = false;
  };

  /// Selects what is sent, from the tensor that `read` returns with the errors added.
  void select(const ReadElements& read, size_t count);
  /// Uses a selection that was made elsewhere. It contains the selected elements, so the elements
  /// of input operands are not read.
  void take(Selection selection);
  /// After `select`: how many of each `granule` elements are sent.
  std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                      size_t granule) const {
    return coding_.codec->count_selected(read, count, selection_, granule);
  }

  /// The largest length of a block's message in bytes, a multiple of 64.
  size_t max_bytes() const { return max_bytes_; }

  /// `elements` + errors -> `out`, for a block of the input that is sent uncoded. What `out` cannot
  /// represent becomes the new errors. `place` must have errors.
  void add_residual(const Place& place, size_t count, const std::byte* elements, std::byte* out);
  /// Encodes the elements of an operand, with the errors added. Returns the length of the message.
  size_t encode(const Operand& operand, size_t count, const Place& place, std::byte* message);
  void decode(std::span<const std::byte> message, size_t count, const Place& place,
              std::byte* elements);
  /// Writes the sum of all operands, in their order, divided by `divisor`, as elements.
  void fold(std::span<const Operand> operands, size_t count, const Place& place, int divisor,
            std::byte* elements);
  /// The same as a message. Returns its length. `added_up`: if not null, it is set to the time when
  /// the sum is complete and encoding begins.
  size_t fold_to_message(std::span<const Operand> operands, size_t count, const Place& place,
                         int divisor, std::byte* message,
                         std::chrono::steady_clock::time_point* added_up = nullptr);

  /// Looks for infinities and NaNs in the elements.
  void inspect(const std::byte* elements, size_t count);
  /// Whether `inspect` has found any.
  bool met_nonfinite() const { return met_nonfinite_; }

 private:
  /// The buffers that a thread needs for one block.
  struct Workspace {
    Recycled<float> sum;
    // One bit per element of the sum: whether a message contains it.
    std::vector<uint64_t> occupied;
    size_t entries = 0;  // number of elements in all messages of the sum
    Recycled<float> floats;
    std::vector<float> lost;  // errors of the sum, if they are added to those of the block
    Recycled<std::byte> own;  // this rank's contribution, if it is encoded like the others
  };
  /// Holds a workspace, and returns it to the coder.
  class Lease {
   public:
    explicit Lease(BlockCoder& coder);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *space_; }

   private:
    BlockCoder& coder_;
    std::unique_ptr<Workspace> space_;
  };

  size_t encode(Workspace& space, const Operand& operand, size_t count, const Place& place,
                std::byte* message);
  /// `codes_own`: operands that are elements are encoded first.
  void add_up(Workspace& space, std::span<const Operand> operands, size_t count, const Place& place,
              int divisor, bool codes_own);
  void add(Workspace& space, const Operand& operand, size_t count, const Place& place,
           bool is_first, bool codes_own);
  const float* as_floats(Workspace& space, const std::byte* elements, size_t count) const;

  const Coding& coding_;
  const DType dtype_;
  const size_t most_;
  const Codec& results_;  // the codec of the messages that are decoded
  const Store store_;
  size_t max_bytes_ = 0;
  Selection selection_;
  Selection bound_;  // only the thresholds, for elements that `select` did not see
  bool has_gathered_only_ = false;
  std::atomic<bool> met_nonfinite_{false};
  std::mutex mutex_;  // guards `idle_`
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace q7x2
