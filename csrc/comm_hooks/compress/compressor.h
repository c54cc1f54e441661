// What a hook sends instead of gradients: the interface of compressors.
//
// The base coroutine (compressing_hook.h) decides when something is compressed, finds gradients of
// zeros, sends what is not compressed, and undoes steps. A compressor makes messages and reads
// them:
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

/// One bucket on its way through a compressor.
struct BucketExchange {
  explicit BucketExchange(Bucket& whole_bucket) : bucket(whole_bucket) {}

  Bucket& bucket;
  std::vector<size_t> coded;  ///< positions in the bucket's gradients, in the memory's order
  std::vector<size_t> whole;  ///< those of the gradients that are not compressed
  ErrorFeedback::Piece* memory = nullptr;
  bool has_residual = false;  ///< the memory's first kind: error feedback
  std::vector<bool> idle;     ///< by position in `coded`: this rank's gradient is zeros
  double mean_share = 1;      ///< 1 / ranks
  double scale = 1;           ///< of the gradients: AMP's loss scale
  double share = 1;           ///< what gradients must be multiplied with to be this rank's share
  /// fp32, laid out as the memory: sent instead of the coded gradients. Undefined: they themselves.
  at::Tensor values;
  /// Set by the compressor: idle gradients take their residuals along, or zeros may not come out as
  /// zeros. So the ranks count who has others, and take back what went along if nobody has.
  bool counts_uses = false;
  std::vector<bool> unused;  ///< idle on all ranks, if that was counted and is known
  at::Tensor facts;          ///< fp32, what this rank has measured; undefined: nothing
  at::Tensor side;  ///< of `side_numel()`: the whole gradients, then the counts, then the facts

  /// What is sent of the i-th of `coded`, and where its mean belongs.
  at::Tensor source(size_t i) const {
    return values.defined() ? memory->at(values, i) : bucket.gradients[coded[i]].flat;
  }
  const Gradient& gradient(size_t i) const { return bucket.gradients[coded[i]]; }

  /// The whole bucket, and beside it the facts.
  std::vector<HookCollective> whole_sums() const;
  int64_t side_numel() const;
  /// A tensor for `pack_side`: of the bucket's type, or fp32 if that is too narrow for the facts.
  at::Tensor new_side() const;
  /// Makes `side` of `to`, which has as many elements, and any type that is wide enough.
  void pack_side(const at::Tensor& to);
  /// The sums of `side` are there: the whole gradients become their means, the facts those of all
  /// ranks, and `unused` is known.
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

  /// The first collectives, `side` among them. Adds the residuals; those of idle gradients only if
  /// uses are counted.
  virtual MessageRound encode() = 0;
  /// The collectives are over. False: something in them is Inf or NaN.
  virtual bool receive() { return true; }
  /// The next collectives, unless the last ones were `Rest::kNone`.
  virtual MessageRound fold() { return {}; }
  /// The means of the coded gradients, and to the memory's `next` what this rank has lost of them.
  virtual void decode() = 0;
  /// What can wait until DDP has its gradients; see `Compressor::finishes_late`.
  virtual void finish() {}
};

/// One way to make messages. Its state, of which a `Stateful` speaks, is what it has beyond the
/// ErrorFeedback's.
class Compressor : public Stateful {
 public:
  Compressor(const HookContext& context, const CompressingOptions& compressing)
      : Stateful(context), compressing_(compressing) {}

  /// Rounds of a bucket, at most.
  virtual size_t lanes() const = 0;
  /// The mask: whether it compresses the gradient of this parameter. Others travel whole.
  bool takes(size_t parameter) const {
    return !compressing_.is_whole(parameter) && can_take(parameter);
  }
  /// Throws Error(kInvalidArgument) for what a policy must not ask of it: a codec or a rank.
  virtual void check(size_t parameter, const std::string& level) const;
  /// Puts positions of gradients into the order in which the messages have them.
  virtual void arrange(const Bucket& bucket, std::vector<size_t>& coded) const {
    static_cast<void>(bucket);
    static_cast<void>(coded);
  }
  /// The elements from the first one of the bucket's i-th gradient to that of the one behind it, in
  /// messages and in the memory. Those that are not its own are padding.
  virtual int64_t room(const Bucket& bucket, size_t i) const {
    return bucket.gradients[i].flat.numel();
  }
  /// Of residuals.
  virtual at::ScalarType memory_dtype(at::ScalarType gradients) const {
    static_cast<void>(gradients);
    return at::kFloat;
  }
  /// `encode` multiplies by `BucketExchange::share` in a pass that it makes anyway.
  virtual bool multiplies() const { return false; }
  /// `receive` finds Inf and NaN: results need no further look, unless they are narrower.
  virtual bool looks_for_nonfinite() const { return false; }
  /// `Encoding::finish` has something to do: DDP gets its gradients before that.
  virtual bool finishes_late() const { return false; }
  /// `exchange` stays until the encoding is gone.
  virtual std::unique_ptr<Encoding> begin(BucketExchange& exchange) = 0;
  /// Writes residuals that are kept in another form into the pieces of memory.
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
