#include "comm_hooks/compress/error_feedback.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace q7x2 {

bool ErrorFeedback::is_kept(size_t number) const {
  return keeps_(number) && c10::multiply_integers(context_.parameters[number].shape) > 0;
}

ErrorFeedback::Piece& ErrorFeedback::piece(const Bucket& bucket, const std::vector<size_t>& order,
                                           Part part) {
  Piece piece;
  for (const size_t i : order) {
    const int64_t numel = bucket.gradients[i].flat.numel();
    const int64_t room = room_of_(bucket, i);
    piece.parameters.push_back(bucket.gradients[i].parameter);
    piece.places.emplace_back(piece.numel, numel);
    piece.numel += room;
    piece.padding += room - numel;
  }
  const auto found = pieces_.find({bucket.index, part});
  if (found != pieces_.end() && found->second.parameters == piece.parameters &&
      found->second.places == piece.places) {
    found->second.used = true;
    return found->second;
  }
  piece.serial = ++serials_;
  write_down_();
  const auto options = bucket.buffer.options().dtype(dtype_of_(bucket.buffer.scalar_type()));
  tensors_.resize(std::max(tensors_.size(), context_.parameters.size()),
                  std::vector<at::Tensor>(kinds_.size()));
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const bool has_copy = context_.may_skip || kinds_[kind].is_shared;
    piece.now.push_back(at::zeros({piece.numel}, options));
    piece.next.push_back(has_copy ? at::zeros({piece.numel}, options) : piece.now.back());
    for (size_t i = 0; i < piece.places.size(); ++i) {
      at::Tensor& kept = tensors_[piece.parameters[i]][kind];
      const at::Tensor here = piece.now_of(kind, i);
      if (kept.defined()) here.copy_(kept);
      kept = here;
    }
  }
  piece.used = true;
  return pieces_[{bucket.index, part}] = std::move(piece);
}

void ErrorFeedback::forget_unused() {
  std::erase_if(pieces_, [](const auto& entry) { return !entry.second.used; });
}

void ErrorFeedback::find_again(const Piece& piece) {
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    for (size_t i = 0; i < piece.places.size(); ++i) {
      tensors_[piece.parameters[i]][kind] = piece.now_of(kind, i);
    }
  }
}

void ErrorFeedback::commit() {
  forget_unused();
  for (auto& [index, piece] : pieces_) {
    piece.used = false;
    std::swap(piece.now, piece.next);
    find_again(piece);
    any_ |= !kinds_.empty();
  }
}

void ErrorFeedback::abort() {
  forget_unused();
  for (auto& [index, piece] : pieces_) {
    piece.used = false;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      if (piece.has_copy(kind)) continue;
      // A new tensor, because a collective that failed may still write to the old one.
      piece.now[kind] = piece.next[kind] = at::zeros_like(piece.now[kind]);
      piece.serial = ++serials_;
    }
    find_again(piece);
  }
}

void ErrorFeedback::rescale(double factor) {
  write_down_();
  for (const auto& kinds : tensors_) {
    for (const at::Tensor& tensor : kinds) {
      if (tensor.defined()) tensor.mul_(factor);
    }
  }
}

void ErrorFeedback::save(HookState& shared, HookState& local) const {
  write_down_();
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    auto& state = (kinds_[kind].is_shared ? shared : local)[kinds_[kind].name];
    for (size_t number = 0; number < context_.parameters.size(); ++number) {
      const HookContext::Parameter& parameter = context_.parameters[number];
      if (!is_kept(number)) continue;
      const bool is_there = number < tensors_.size() && tensors_[number][kind].defined();
      state[parameter.name] = is_there ? tensors_[number][kind].clone().view(parameter.shape)
                                       : at::zeros(parameter.shape, dtype_of_(parameter.dtype));
    }
  }
}

void ErrorFeedback::load(const HookState& shared, const HookState& local) {
  std::vector<std::vector<at::Tensor>> tensors(context_.parameters.size(),
                                               std::vector<at::Tensor>(kinds_.size()));
  bool found = false;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const HookState& from = kinds_[kind].is_shared ? shared : local;
    const auto state = from.find(kinds_[kind].name);
    if (state == from.end()) continue;
    for (size_t number = 0; number < tensors.size(); ++number) {
      const HookContext::Parameter& parameter = context_.parameters[number];
      const auto tensor = state->second.find(parameter.name);
      if (tensor == state->second.end() || !is_kept(number)) continue;
      if (tensor->second.sizes() != at::IntArrayRef(parameter.shape)) {
        throw Error(ErrorCode::kInvalidArgument, std::string("expected the ") + kinds_[kind].name +
                                                     " of " + parameter.name + " in shape " +
                                                     c10::str(parameter.shape) + ", got " +
                                                     c10::str(tensor->second.sizes()));
      }
      tensors[number][kind] = tensor->second.to(dtype_of_(parameter.dtype)).flatten().clone();
      found = true;
    }
  }
  tensors_ = std::move(tensors);
  pieces_.clear();
  any_ = found;
}

}  // namespace q7x2
