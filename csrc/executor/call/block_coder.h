// BlockCoder: what the ops of a Plan do to coded blocks, for one collective.
//
// Codecs know fp32. Elements of other types are widened on the way in and rounded on the way out,
// once; sums are taken in fp32.
//
// An element's error is kept in one place: that of this rank's contribution, or, if this rank owns
// the element, that of the sum. Both are its residual at this rank, and either is added to what the
// rank contributes next, so the buffer stays right when the owner changes. If the rank sends
// elements as they are, for another rank to add up and encode, their residual is zero afterwards.
// Which op adds the residual is in the Plan.
//
// Several threads may use a coder at once, for blocks of different elements. Each works in a
// workspace of its own.
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
  std::shared_ptr<const Codec> codec;  ///< null: it is not
  CodecKeys keys;
  /// By input region: the errors of its elements, added and kept. Empty: what is lost is lost.
  std::vector<float*> errors;
  /// A result that is not finite is an error.
  bool refuses_nonfinite = false;
  EdgeWish edges = EdgeWish::kAuto;  ///< which messages are compressed

  explicit operator bool() const { return codec != nullptr; }
};

class BlockCoder {
 public:
  /// Blocks are of at most `most` elements of `dtype`, of `total` bytes. `decodes_sums`: what is
  /// decoded are sums, not contributions.
  BlockCoder(const Coding& coding, DType dtype, size_t most, size_t total, bool decodes_sums);

  /// Mixed into the rounding key of sums. By the numbers of this rank's own contribution, ties of
  /// signs would go the owner's way.
  static constexpr uint64_t kSumRounding = 1;

  /// Where a block lies: the index of its first element in the tensor, and its errors, if any.
  struct Place {
    uint64_t first = 0;
    float* errors = nullptr;
    bool takes_residual = true;  ///< the errors are added; else only what is lost adds to them
  };
  /// A contribution to a sum: elements, or a message.
  struct Operand {
    const std::byte* elements = nullptr;
    std::span<const std::byte> message;
    bool is_input = false;  ///< elements of the tensor that `select` saw, not a sum of several
  };

  /// Of the tensor that `read` gives, errors added.
  void select(const ReadElements& read, size_t count);
  /// What is sent of the tensor, whose other elements are elsewhere: operands that are its elements
  /// are not read.
  void take(Selection selection);
  /// How many of each `granule` of its elements are sent, after `select`.
  std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                      size_t granule) const {
    return coding_.codec->count_selected(read, count, selection_, granule);
  }

  /// The longest message of a block, a multiple of 64.
  size_t max_bytes() const { return max_bytes_; }

  /// A block of the tensor that leaves as it is, with its errors: `elements` + errors -> `out`.
  /// What `out` cannot hold of them stays behind. `place` has errors.
  void add_residual(const Place& place, size_t count, const std::byte* elements, std::byte* out);
  /// The message of an operand's elements, errors added; returns its length.
  size_t encode(const Operand& operand, size_t count, const Place& place, std::byte* message);
  void decode(std::span<const std::byte> message, size_t count, const Place& place,
              std::byte* elements);
  /// The sum of all operands, in their order, divided by `divisor`, as elements.
  void fold(std::span<const Operand> operands, size_t count, const Place& place, int divisor,
            std::byte* elements);
  /// The same as a message; returns its length. `added_up`, if it is not null: is set to the time
  /// when the sum is there, and encoding begins.
  size_t fold_to_message(std::span<const Operand> operands, size_t count, const Place& place,
                         int divisor, std::byte* message,
                         std::chrono::steady_clock::time_point* added_up = nullptr);

  /// Looks for results that are not finite.
  void inspect(const std::byte* elements, size_t count);
  /// It has met some.
  bool met_nonfinite() const { return met_nonfinite_; }

 private:
  /// What one thread needs for one block.
  struct Workspace {
    Recycled<float> sum;
    std::vector<uint64_t> occupied;  // a bit for each element of the sum that some message holds
    size_t entries = 0;              // of the sum's messages together
    Recycled<float> floats;
    std::vector<float> lost;  // of the sum, where it adds to the errors
    Recycled<std::byte> own;  // this rank's contribution, where that is coded like the others
  };
  /// Has a workspace, and returns it to the coder.
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
  /// `codes_own`: operands that are elements go through the codec first.
  void add_up(Workspace& space, std::span<const Operand> operands, size_t count, const Place& place,
              int divisor, bool codes_own);
  void add(Workspace& space, const Operand& operand, size_t count, const Place& place,
           bool is_first, bool codes_own);
  const float* as_floats(Workspace& space, const std::byte* elements, size_t count) const;

  const Coding& coding_;
  const DType dtype_;
  const size_t most_;
  const Codec& results_;  // made what is decoded
  const Store store_;
  size_t max_bytes_ = 0;
  Selection selection_;
  Selection bound_;  // the same for elements that it did not see
  bool has_gathered_only_ = false;
  std::atomic<bool> met_nonfinite_{false};
  std::mutex mutex_;  // guards the next
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace q7x2
