// What a hook sends instead of gradients: the interface of compressors.
//
// The base coroutine (compressing_hook.h) decides when something is compressed, finds gradients of
// zeros, sends what is not compressed, and undoes steps. A compressor writes and reads messages:
//
//   encode -> collectives -> fold -> collectives -> ... -> decode -> finish
//
// A new compressor is one file with these two classes, and one line in compressors.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm_hooks/compress/compressing_options.h"
#include "comm_hooks/compress/error_feedback.h"

namespace q7x2 {

/// One bucket while a compressor processes it.
struct BucketExchange {
  explicit BucketExchange(Bucket& whole_bucket) : bucket(whole_bucket) {}

  Bucket& bucket;
  /// indices of the bucket's gradients that are compressed, in the memory's order
  std::vector<size_t> coded;
  std::vector<size_t> whole;  ///< indices of the gradients that are not compressed
  ErrorFeedback::Piece* memory = nullptr;
  bool has_residual = false;  ///< whether the memory's first kind is the residual
  std::vector<bool> idle;     ///< by index in `coded`: whether this rank's gradient is zeros
  double mean_share = 1;      ///< 1 / ranks
  double scale = 1;           ///< AMP's loss scale, a factor in the gradients
  double share = 1;           ///< the factor that makes gradients this rank's share
  /// fp32, in the layout of the memory: sent instead of the coded gradients. Undefined: the
  /// gradients themselves are sent.
  at::Tensor values;
  /// Set by the compressor: idle gradients send their residuals, or zeros may not decode to zeros.
  /// So the ranks count which gradients others have, and undo the effect if no rank has one.
  bool counts_uses = false;
  std::vector<bool> unused;  ///< idle on all ranks, if that was counted and is known
  at::Tensor facts;          ///< fp32, what this rank has measured; undefined: nothing
  /// `side_numel()` elements: the whole gradients, then the counts, then the facts
  at::Tensor side;

  /// What is sent for the i-th gradient of `coded`, and the destination of its mean.
  at::Tensor source(size_t i) const {
    return values.defined() ? memory->at(values, i) : bucket.gradients[coded[i]].flat;
  }
  const Gradient& gradient(size_t i) const { return bucket.gradients[coded[i]]; }

  /// The sums of the whole bucket and of the facts.
  std::vector<HookCollective> whole_sums() const;
  int64_t side_numel() const;
  /// A tensor for `pack_side`: of the bucket's type, or fp32 if that is too narrow for the facts.
  at::Tensor new_side() const;
  /// Makes `to` the tensor `side` and fills it. It must have as many elements, and any type that is
  /// wide enough.
  void pack_side(const at::Tensor& to);
  /// To be called when `side` is summed: the whole gradients become their means, the facts those of
  /// all ranks, and `unused` is known.
  void unpack_side();
};

/// Collectives that start together.
struct MessageRound {
  std::vector<HookCollective> collectives;
  Rest rest = Rest::kNone;
};

/// The messages of one bucket.
class Encoding {
 public:
  Encoding() = default;
  virtual ~Encoding() = default;
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  /// The first collectives, including `side`. Adds the residuals; those of idle gradients only if
  /// uses are counted.
  virtual MessageRound encode() = 0;
  /// To be called when the collectives are complete. Returns false if their result has Inf or NaN.
  virtual bool receive() { return true; }
  /// The next collectives. Not called if the last ones were `Rest::kNone`.
  virtual MessageRound fold() { return {}; }
  /// Writes the means of the coded gradients, and this rank's errors to the memory's `next`.
  virtual void decode() = 0;
  /// Work that can wait until DDP has its gradients; see `Compressor::finishes_late`.
  virtual void finish() {}
};

/// One way to make messages. The state that it saves as a `Stateful` is in addition to that of the
/// ErrorFeedback.
class Compressor : public Stateful {
 public:
  Compressor(const HookContext& context, const CompressingOptions& compressing)
      : Stateful(context), compressing_(compressing) {}

  /// Maximum number of rounds per bucket.
  virtual size_t lanes() const = 0;
  /// Whether it compresses the gradient of this parameter. Other gradients are sent whole.
  bool takes(size_t parameter) const {
    return !compressing_.is_whole(parameter) && can_take(parameter);
  }
  /// Throws Error(kInvalidArgument) for a level (a codec or a rank) that it does not support.
  virtual void check(size_t parameter, const std::string& level) const;
  /// Sorts the indices of gradients in the order of the messages.
  virtual void arrange(const Bucket& bucket, std::vector<size_t>& coded) const {
    static_cast<void>(bucket);
    static_cast<void>(coded);
  }
  /// Number of elements in messages and in the memory from the start of the bucket's i-th gradient
  /// to the start of the next one. Elements after the gradient's own are padding.
  virtual int64_t room(const Bucket& bucket, size_t i) const {
    return bucket.gradients[i].flat.numel();
  }
  /// The type of residuals.
  virtual at::ScalarType memory_dtype(at::ScalarType gradients) const {
    static_cast<void>(gradients);
    return at::kFloat;
  }
  /// Whether `encode` multiplies by `BucketExchange::share`, in a pass that it makes anyway.
  virtual bool multiplies() const { return false; }
  /// Whether `receive` finds Inf and NaN: results need no further check, unless they are narrower.
  virtual bool looks_for_nonfinite() const { return false; }
  /// Whether `Encoding::finish` does something: DDP gets its gradients before that.
  virtual bool finishes_late() const { return false; }
  /// `exchange` must outlive the encoding.
  virtual std::unique_ptr<Encoding> begin(BucketExchange& exchange) = 0;
  /// Writes residuals that are stored in another form to the pieces of memory.
  virtual void write_down() {}

 protected:
  /// Whether it can compress a gradient of this parameter's shape.
  virtual bool can_take(size_t parameter) const {
    static_cast<void>(parameter);
    return true;
  }

  const CompressingOptions compressing_;
};

}  // namespace q7x2
