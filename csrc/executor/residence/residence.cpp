#include "executor/residence/residence.h"

namespace q7x2 {

Residence::Memory Residence::memory(const Run& run, size_t, ScratchPool& pool) const {
  const size_t blocks = run.block_bytes();
  const size_t messages = run.message_bytes();
  if (blocks + messages == 0) return {};
  const ScratchPool::Buffer buffer = pool.take(blocks + messages);
  return {buffer.data, buffer.data + blocks, buffer};
}

Host& Host::of_process() {
  static auto* const host = new Host();  // never destroyed: calls may outlive static objects
  return *host;
}

}  // namespace q7x2
