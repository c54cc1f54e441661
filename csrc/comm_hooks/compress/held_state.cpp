#include "comm_hooks/compress/held_state.h"

#include "comm_hooks/compress/gradient_flags.h"

namespace q7x2 {

std::vector<bool> idle_gradients(const BucketExchange& exchange) {
  std::vector<at::Tensor> flats;
  for (size_t i = 0; i < exchange.coded.size(); ++i) flats.push_back(exchange.gradient(i).flat);
  return are_zero(flats);
}

Held hold_idle(const BucketExchange& exchange, Compressor& compressor) {
  Held held;
  const ErrorFeedback::Piece& memory = *exchange.memory;
  for (size_t i = 0; i < exchange.idle.size(); ++i) {
    if (!exchange.idle[i] || memory.now.empty()) continue;
    if (held.empty()) compressor.write_down();
    std::vector<at::Tensor>& kept = held.emplace_back(i, std::vector<at::Tensor>()).second;
    for (size_t kind = 0; kind < memory.now.size(); ++kind) {
      const at::Tensor now = memory.now_of(kind, i);
      kept.push_back(memory.has_copy(kind) ? now : now.clone());
    }
  }
  return held;
}

void restore_idle(const BucketExchange& exchange, const Held& held) {
  for (const auto& [i, kept] : held) {
    for (size_t kind = 0; kind < kept.size(); ++kind) {
      at::Tensor next = exchange.memory->next_of(kind, i);
      if (!exchange.has_residual || kind != kResidual) {
        next.copy_(kept[kind]);
      } else if (!exchange.counts_uses) {
        // it was not sent, but `next` may contain a rounding error of the result
        next.add_(kept[kind]);
      } else if (exchange.unused[i]) {
        next.copy_(kept[kind]);  // it was sent, but the result was dropped
      }
    }
  }
}

}  // namespace q7x2
