// What a hook keeps for each element of a gradient: residuals, momenta.
//
// State belongs to parameters, but a bucket's collectives want it in one piece, in the order in
// which the gradients lie in their messages. So it lies in pieces, one for each bucket, and when
// DDP lays its buckets out anew, or the hook takes gradients in another order, it moves.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm_hooks/hook.h"

namespace q7x2 {

class KeptTensors {
 public:
  struct Kind {
    const char* name;  ///< in a saved state
    bool is_shared;    ///< equal on all ranks
  };

  /// All in fp32 and of one dimension; those of a kind at the position it has in `kinds`.
  struct Piece {
    std::vector<at::Tensor> now;
    std::vector<at::Tensor> next;  ///< of the step in flight: becomes `now` if the step is kept

    /// Where the n-th of the `order` lies.
    std::vector<std::pair<int64_t, int64_t>> places;  ///< offset and length

   private:
    friend class KeptTensors;
    std::vector<size_t> parameters;
    bool used = false;  // in this step
  };

  /// `keeps(number)`: whether there is something to keep of a parameter.
  KeptTensors(const HookContext& context, std::vector<Kind> kinds,
              std::function<bool(size_t)> keeps)
      : context_(context), kinds_(std::move(kinds)), keeps_(std::move(keeps)) {}

  /// The state of the gradients at these positions of the bucket, in this order. Their `next` is to
  /// be written in this step.
  Piece& piece(const Bucket& bucket, const std::vector<size_t>& order);
  void end_step(bool keep);
  void rescale(double factor);
  void save(HookState& shared, HookState& local) const;
  /// Throws Error(kInvalidArgument) for a tensor of another shape, and has then changed nothing.
  void load(const HookState& shared, const HookState& local);
  /// Something was kept.
  bool any() const { return any_; }

 private:
  /// Calls f(number, place) for the parameters of a piece.
  template <typename F>
  static void for_each(const Piece& piece, F&& f);
  bool is_kept(size_t number) const;

  const HookContext& context_;
  const std::vector<Kind> kinds_;
  const std::function<bool(size_t)> keeps_;
  std::map<size_t, Piece> pieces_;                // by index of the bucket
  std::vector<std::vector<at::Tensor>> tensors_;  // by number and kind; views of pieces
  bool any_ = false;
};

}  // namespace q7x2
