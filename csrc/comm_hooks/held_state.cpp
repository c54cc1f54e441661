#include "comm_hooks/held_state.h"

namespace q7x2 {

Held hold_idle(const BucketExchange& exchange, Compressor& compressor) {
  Held held;
  const Memory::Piece& memory = *exchange.memory;
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
      // An idle gradient's residual was not sent, but its owner's roundings may be in it.
      if (exchange.has_residual && kind == kResidual) {
        next.add_(kept[kind]);
      } else {
        next.copy_(kept[kind]);
      }
    }
  }
}

}  // namespace q7x2
