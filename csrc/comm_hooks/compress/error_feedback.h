// What a hook keeps for each element of a gradient: residuals, momenta.
//
// State belongs to parameters, by name, but a bucket's collectives want it in one piece, in the
// order in which the gradients lie in their messages. So it lies in pieces, one for each bucket. It
// moves if DDP lays its buckets out anew, or if the compressor takes gradients in another order.
//
// A step is a transaction: it writes `next`, and `commit` or `abort` ends it. If steps may be
// skipped (HookContext::may_skip: a gradient scaler is attached), `next` is a second copy, and
// `abort` leaves everything as it was. Else `next` is `now`: half of the memory, and `abort` drops
// what was kept of the gradients of that step. State that is equal on all ranks has a second copy
// always, because no rank may lose it alone.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

class ErrorFeedback {
 public:
  struct Kind {
    const char* name;  ///< in a saved state
    bool is_shared;    ///< equal on all ranks
  };

  /// Tensors of one dimension.
  struct Piece {
    std::vector<at::Tensor> now;   ///< by kind
    std::vector<at::Tensor> next;  ///< of the step in flight

    /// Offset and length of the i-th gradient of the order. Padding may follow it.
    std::vector<std::pair<int64_t, int64_t>> places;
    int64_t numel = 0;    ///< with padding
    int64_t padding = 0;  ///< elements of no gradient: zeros between steps
    uint64_t serial = 0;  ///< of this layout: another one has another number

    bool has_copy(size_t kind) const { return !now[kind].is_same(next[kind]); }
    at::Tensor now_of(size_t kind, size_t i) const { return at(now[kind], i); }
    at::Tensor next_of(size_t kind, size_t i) const { return at(next[kind], i); }
    at::Tensor at(const at::Tensor& packed, size_t i) const {
      return packed.narrow(0, places[i].first, places[i].second);
    }

   private:
    friend class ErrorFeedback;
    std::vector<size_t> parameters;
    bool used = false;  // in this step
  };

  /// `keeps(number)`: whether there is something to keep of a parameter. `room_of(bucket, i)`: the
  /// elements from the bucket's i-th gradient to the one behind it, its own at least. `dtype_of`:
  /// of what is kept for gradients of a dtype. `write_down` is called before anything is read: what
  /// the compressor has not yet written into its pieces is written then.
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

  /// Which gradients of a bucket lie together.
  enum class Part {
    kCoded,
    kLeftOut,  ///< a policy leaves them whole, or skips them
  };

  /// The state of the gradients at these positions of the bucket, in this order. Their `next` is to
  /// be written in this step.
  Piece& piece(const Bucket& bucket, const std::vector<size_t>& order, Part part = Part::kCoded);
  /// `next` becomes the state.
  void commit();
  /// The step has not happened.
  void abort();
  void rescale(double factor);
  void save(HookState& shared, HookState& local) const;
  /// Throws Error(kInvalidArgument) for a tensor of another shape, and has then changed nothing.
  void load(const HookState& shared, const HookState& local);
  /// Something was kept.
  bool any() const { return any_; }

 private:
  bool is_kept(size_t number) const;
  /// Drops the pieces of buckets that DDP does not have any more.
  void forget_unused();
  void find_again(const Piece& piece);

  const HookContext& context_;
  const std::vector<Kind> kinds_;
  const std::function<bool(size_t)> keeps_;
  const std::function<int64_t(const Bucket&, size_t)> room_of_;
  const std::function<at::ScalarType(at::ScalarType)> dtype_of_;
  const std::function<void()> write_down_;
  std::map<std::pair<size_t, Part>, Piece> pieces_;  // by index of the bucket
  std::vector<std::vector<at::Tensor>> tensors_;     // by number and kind; views of pieces
  uint64_t serials_ = 0;
  bool any_ = false;
};

}  // namespace q7x2
