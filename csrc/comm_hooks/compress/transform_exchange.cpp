#include "comm_hooks/compress/transform_exchange.h"

#include "comm_hooks/compress/held_state.h"

namespace q7x2 {
namespace {

size_t momentum_kind(const BucketExchange& exchange) {
  return exchange.has_residual ? 1 : 0;
}

/// Sets the tensors that the transform uses besides the values.
void give_memory(const BucketExchange& exchange, const GradientTransform& transform,
                 TransformState& state) {
  const ErrorFeedback::Piece& memory = *exchange.memory;
  const size_t kind = momentum_kind(exchange);
  state.now = memory.now[kind];
  state.next = memory.next[kind];
  if (transform.keeps_own()) {
    state.own = memory.now[kind + 1];
    state.own_next = memory.next[kind + 1];
  }
  if (exchange.has_residual) state.left = memory.next[kResidual];
}

at::Tensor copied_gradients(const BucketExchange& exchange) {
  const ErrorFeedback::Piece& memory = *exchange.memory;
  const at::TensorOptions options = memory.now[momentum_kind(exchange)].options();
  const at::Tensor copy =
      memory.padding > 0 ? at::zeros({memory.numel}, options) : at::empty({memory.numel}, options);
  for (size_t i = 0; i < exchange.coded.size(); ++i) {
    memory.at(copy, i).copy_(exchange.gradient(i).flat);
  }
  return copy;
}

}  // namespace

void emit(BucketExchange& exchange, const GradientTransform& transform, TransformState& state) {
  const ErrorFeedback::Piece& memory = *exchange.memory;
  exchange.values = copied_gradients(exchange);
  state.values = exchange.values;
  give_memory(exchange, transform, state);
  if (exchange.has_residual && transform.masks()) {
    const at::Tensor& residual = memory.now[kResidual];
    state.owed = memory.has_copy(kResidual) ? residual : residual.clone();
  }
  transform.emit(state);
  for (size_t i = 0; i < exchange.idle.size(); ++i) {
    if (exchange.idle[i]) exchange.source(i).zero_();
  }
}

void receive(const BucketExchange& exchange, const GradientTransform& transform,
             TransformState& state, bool in_full) {
  const ErrorFeedback::Piece& memory = *exchange.memory;
  if (!in_full) {
    transform.receive(state);
  } else if (transform.is_shared()) {
    state.values = copied_gradients(exchange);
    give_memory(exchange, transform, state);
    if (exchange.has_residual && memory.has_copy(kResidual)) {
      memory.next[kResidual].copy_(memory.now[kResidual]);
    }
    transform.follow(state);
  }
}

void give_values(const BucketExchange& exchange) {
  for (size_t i = 0; i < exchange.coded.size(); ++i) {
    exchange.source(i).copy_(exchange.gradient(i).flat);
  }
}

void take_values(const BucketExchange& exchange) {
  if (!exchange.values.defined()) return;
  for (size_t i = 0; i < exchange.coded.size(); ++i) {
    exchange.gradient(i).flat.copy_(exchange.source(i));
  }
}

}  // namespace q7x2
