#include "fibres/grid.h"

#include <algorithm>
#include <string>

#include "fibres/runner.h"

namespace q7x2::fibres {
namespace {

thread_local Runner runner;

const WarpValues& exchange(uint32_t mask, uint64_t value, int line) {
  Thread& self = runner.self();
  if ((mask >> runner.current % kWarp & 1) == 0) {
    runner.fail("line " + std::to_string(line) + ": the mask of thread " +
                std::to_string(runner.current) + " leaves out its own lane");
  }
  self.mask = mask;
  self.brought = value;
  char* const edge = runner.warp_edge();
  release(edge);
  runner.wait(State::kAtWarp, line);
  acquire(edge);
  return self.received;
}

uint32_t reduced(WarpReduction reduction, uint32_t a, uint32_t b) {
  switch (reduction) {
    case WarpReduction::kAdd:
      return a + b;
    case WarpReduction::kMin:
      return std::min(a, b);
    case WarpReduction::kMax:
      return std::max(a, b);
    case WarpReduction::kSignedMin:
      return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? a : b;
    case WarpReduction::kSignedMax:
      return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b;
    case WarpReduction::kAnd:
      return a & b;
    case WarpReduction::kOr:
      return a | b;
    default:
      return a ^ b;
  }
}

}  // namespace

WithOrder::WithOrder(Order order) : before_(runner.order) {
  runner.order = order;
}
WithOrder::~WithOrder() {
  runner.order = before_;
}

WithoutBarriers::WithoutBarriers() {
  runner.without_barriers = true;
}
WithoutBarriers::~WithoutBarriers() {
  runner.without_barriers = false;
}

RaceFinder race_finder() {
#if defined(Q7X2_FIBRES_TSAN)
  return RaceFinder::kThreadSanitizer;
#elif defined(__SANITIZE_ADDRESS__)
  return RaceFinder::kNone;
#else
  return RaceFinder::kAccesses;
#endif
}

void run_grid(const char* what, unsigned blocks, unsigned threads, size_t shared_bytes,
              const std::function<void()>& kernel) {
  runner.run(what, blocks, threads, shared_bytes, kernel);
}

Dim3 grid_size() {
  return runner.grid;
}
Dim3 block_size() {
  return runner.block;
}
Dim3 block_index() {
  return runner.block_index;
}
Dim3 thread_index() {
  return {runner.current, 0, 0};
}

std::byte* dynamic_shared() {
  const auto address = reinterpret_cast<uintptr_t>(runner.dynamic.data());
  return runner.dynamic.data() + (16 - address % 16) % 16;
}

unsigned sync_block(bool vote, int line) {
  if (runner.without_barriers) return 0;
  runner.self().vote = vote;
  char* const edge = runner.block_edge();
  release(edge);
  runner.wait(State::kAtBlock, line);
  acquire(edge);
  return runner.votes;
}

void sync_warp(uint32_t mask, int line) {
  if (runner.without_barriers) return;
  exchange(mask, 0, line);
}

uint64_t shuffle(uint32_t mask, uint64_t value, unsigned source, int line) {
  const WarpValues& values = exchange(mask, value, line);
  if ((mask >> source & 1) == 0) {
    runner.fail("line " + std::to_string(line) + ": thread " + std::to_string(runner.current) +
                " asks for the value of lane " + std::to_string(source) +
                ", which is not in its mask");
  }
  return values[source];
}

uint32_t ballot(uint32_t mask, bool vote, int line) {
  const WarpValues& values = exchange(mask, vote ? 1 : 0, line);
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) bits |= static_cast<uint32_t>(values[lane]) << lane;
  return bits;
}

uint32_t reduce(uint32_t mask, uint32_t value, WarpReduction reduction, int line) {
  const WarpValues& values = exchange(mask, value, line);
  uint32_t result = value;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0 || lane == runner.current % kWarp) continue;
    result = reduced(reduction, result, static_cast<uint32_t>(values[lane]));
  }
  return result;
}

void note_atomic(const void* address, size_t bytes) {
  if (race_finder() == RaceFinder::kAccesses) runner.note(address, bytes, AccessKind::kAtomic);
}

bool in_kernel() {
  return runner.running;
}

void note_access(const void* address, size_t bytes, bool write) {
  runner.note(address, bytes, write ? AccessKind::kWrite : AccessKind::kRead);
}

}  // namespace q7x2::fibres
