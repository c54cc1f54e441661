#include "comm_hooks/kept_tensors.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace q7x2 {

template <typename F>
void KeptTensors::for_each(const Piece& piece, F&& f) {
  for (size_t i = 0; i < piece.parameters.size(); ++i) f(piece.parameters[i], piece.places[i]);
}

bool KeptTensors::is_kept(size_t number) const {
  return keeps_(number) && c10::multiply_integers(context_.parameters[number].shape) > 0;
}

KeptTensors::Piece& KeptTensors::piece(const Bucket& bucket, const std::vector<size_t>& order) {
  std::vector<size_t> parameters;
  for (const size_t i : order) parameters.push_back(bucket.gradients[i].parameter);
  const auto found = pieces_.find(bucket.index);
  if (found != pieces_.end() && found->second.parameters == parameters) {
    found->second.used = true;
    return found->second;
  }

  Piece piece;
  int64_t numel = 0;
  for (const size_t i : order) {
    piece.places.emplace_back(numel, bucket.gradients[i].flat.numel());
    numel += bucket.gradients[i].flat.numel();
  }
  piece.parameters = std::move(parameters);
  const auto options = bucket.buffer.options().dtype(at::kFloat);
  tensors_.resize(std::max(tensors_.size(), context_.parameters.size()),
                  std::vector<at::Tensor>(kinds_.size()));
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    piece.now.push_back(at::zeros({numel}, options));
    piece.next.push_back(at::empty({numel}, options));
    for_each(piece, [&](size_t number, const auto& place) {
      at::Tensor& kept = tensors_[number][kind];
      const at::Tensor here = piece.now[kind].narrow(0, place.first, place.second);
      if (kept.defined()) here.copy_(kept);
      kept = here;
    });
  }
  piece.used = true;
  return pieces_[bucket.index] = std::move(piece);
}

void KeptTensors::end_step(bool keep) {
  for (auto entry = pieces_.begin(); entry != pieces_.end();) {
    Piece& piece = entry->second;
    if (!piece.used) {  // DDP has fewer buckets now; `tensors_` has what it held
      entry = pieces_.erase(entry);
      continue;
    }
    piece.used = false;
    ++entry;
    if (!keep) continue;
    std::swap(piece.now, piece.next);
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      for_each(piece, [&](size_t number, const auto& place) {
        tensors_[number][kind] = piece.now[kind].narrow(0, place.first, place.second);
      });
    }
    any_ |= !kinds_.empty();
  }
}

void KeptTensors::rescale(double factor) {
  for (const auto& kinds : tensors_) {
    for (const at::Tensor& tensor : kinds) {
      if (tensor.defined()) tensor.mul_(factor);
    }
  }
}

void KeptTensors::save(HookState& shared, HookState& local) const {
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    auto& state = (kinds_[kind].is_shared ? shared : local)[kinds_[kind].name];
    for (size_t number = 0; number < context_.parameters.size(); ++number) {
      const HookContext::Parameter& parameter = context_.parameters[number];
      if (!is_kept(number)) continue;
      const bool is_there = number < tensors_.size() && tensors_[number][kind].defined();
      state[parameter.name] = is_there ? tensors_[number][kind].clone().view(parameter.shape)
                                       : at::zeros(parameter.shape, at::kFloat);
    }
  }
}

void KeptTensors::load(const HookState& shared, const HookState& local) {
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
      tensors[number][kind] = tensor->second.to(at::kFloat).flatten().clone();
      found = true;
    }
  }
  tensors_ = std::move(tensors);
  pieces_.clear();
  any_ = found;
}

}  // namespace q7x2
