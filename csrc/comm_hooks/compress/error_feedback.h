// ErrorFeedback: what a hook stores for each element of a gradient: residuals, momenta.
//
// State belongs to parameters, by name. But a bucket's collectives need it as one tensor, in the
// order of the gradients in their messages. So it is stored in pieces, one per bucket. It is moved
// if DDP rebuilds its buckets, or if the compressor takes gradients in another order.
//
// A step is a transaction: it writes `next`, and `commit` or `abort` ends it. If steps may be
// skipped (HookContext::may_skip: a gradient scaler is attached), `next` is a second copy, and
// `abort` leaves everything as it was. Otherwise `next` is `now`: half the memory, and `abort`
// drops the residuals of that step's gradients. State that is equal on all ranks always has a
// second copy, because no rank may lose it alone.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

class ErrorFeedback {
 public:
  struct Kind {
    const char* name;  ///< its name in a saved state
    bool is_shared;    ///< whether it is equal on all ranks
  };

  /// Its tensors have one dimension.
  struct Piece {
    std::vector<at::Tensor> now;   ///< by kind
    std::vector<at::Tensor> next;  ///< the state of the step in flight

    /// Offset and length of the i-th gradient in the order. Padding may follow it.
    std::vector<std::pair<int64_t, int64_t>> places;
    int64_t numel = 0;    ///< including padding
    int64_t padding = 0;  ///< number of elements of no gradient, which are zeros between steps
    uint64_t serial = 0;  ///< number of this layout; every layout has another one

    bool has_copy(size_t kind) const { return !now[kind].is_same(next[kind]); }
    at::Tensor now_of(size_t kind, size_t i) const { return at(now[kind], i); }
    at::Tensor next_of(size_t kind, size_t i) const { return at(next[kind], i); }
    at::Tensor at(const at::Tensor& packed, size_t i) const {
      return packed.narrow(0, places[i].first, places[i].second);
    }

   private:
    friend class ErrorFeedback;
    std::vector<size_t> parameters;
    bool used = false;  // whether it is used in this step
  };

  /// `keeps(number)`: whether the parameter has state. `room_of(bucket, i)`: number of elements
  /// from the start of the bucket's i-th gradient to that of the next one. `dtype_of`: type of the
  /// state for gradients of a type. `write_down` is called before anything is read: the compressor
  /// then writes what it has not yet written to its pieces.
  ErrorFeedback(const HookContext& context, std::vector<Kind> kinds,
                std::function<bool(size_t)> keeps,
                std::function<int64_t(const Bucket&, size_t)> room_of,
                std::function<at::ScalarType(at::ScalarType)> dtype_of,
                std::function<void()> write_down)
      : context_(context),
        kinds_(std::move(kinds)),
        keeps_(std::move(keeps)),
        room_of_(std::move(room_of)),
        dtype_of_(std::move(dtype_of)),
        write_down_(std::move(write_down)) {}

  /// Which gradients of a bucket share a piece.
  enum class Part {
    kCoded,
    kLeftOut,  ///< policies send them whole, or skip them
  };

  /// The state of the gradients with these indices in the bucket, in this order. The step must
  /// write their `next`.
  Piece& piece(const Bucket& bucket, const std::vector<size_t>& order, Part part = Part::kCoded);
  /// The step is complete: `next` becomes the state.
  void commit();
  /// The step is undone.
  void abort();
  void rescale(double factor);
  void save(HookState& shared, HookState& local) const;
  /// Throws Error(kInvalidArgument) if a tensor has another shape; then nothing has changed.
  void load(const HookState& shared, const HookState& local);
  /// Whether there is any state.
  bool any() const { return any_; }

 private:
  bool is_kept(size_t number) const;
  /// Drops the pieces of buckets that DDP no longer has.
  void forget_unused();
  void find_again(const Piece& piece);

  const HookContext& context_;
  const std::vector<Kind> kinds_;
  const std::function<bool(size_t)> keeps_;
  const std::function<int64_t(const Bucket&, size_t)> room_of_;
  const std::function<at::ScalarType(at::ScalarType)> dtype_of_;
  const std::function<void()> write_down_;
  std::map<std::pair<size_t, Part>, Piece> pieces_;  // by index of the bucket
  std::vector<std::vector<at::Tensor>> tensors_;  // by parameter number and kind; views of pieces
  uint64_t serials_ = 0;
  bool any_ = false;
};

}  // namespace q7x2
