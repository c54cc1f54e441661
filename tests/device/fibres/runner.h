// Runs grids on one thread of the CPU; grid.h is its interface.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fibres/accesses.h"
#include "fibres/fibre.h"
#include "fibres/grid.h"

namespace q7x2::fibres {

constexpr unsigned kMostThreads = 1024;

enum class State : uint8_t { kReady, kAtBlock, kAtWarp, kOver };

/// What each lane of a warp brought to an operation.
using WarpValues = std::array<uint64_t, kWarp>;

struct Thread {
  explicit Thread(std::byte* stack) : fibre(stack) {}

  Fibre fibre;
  State state = State::kOver;
  Moment moment;
  int line = 0;
  uint32_t mask = 0;
  uint64_t brought = 0;
  bool vote = false;
  WarpValues received = {};
};

/// What one thread of the CPU needs for its grids, kept from one launch to the next.
class Runner {
 public:
  void run(const char* what, unsigned blocks, unsigned threads, size_t shared_bytes,
           const std::function<void()>& kernel);

  Order order;
  bool without_barriers = false;
  bool running = false;
  Dim3 grid;
  Dim3 block;
  Dim3 block_index;
  unsigned current = 0;
  std::vector<std::byte> dynamic;
  unsigned votes = 0;

  Thread& self() { return *threads_[current]; }
  char* block_edge() { return &block_edges_[epoch_ % 2]; }
  char* warp_edge() { return &warp_edges_[current / kWarp]; }
  void wait(State state, int line);
  void note(const void* address, size_t bytes, AccessKind kind);
  [[noreturn]] void fail(std::string problem);

 private:
  void run_block(const std::function<void()>& kernel);
  void step(unsigned thread);
  bool choose(unsigned* thread);
  void pass_block_barrier();
  void pass_warp_barrier(unsigned first);
  std::vector<unsigned> order_of(unsigned count);

  const char* what_ = "";
  Stacks stacks_{kMostThreads};  // outlives the threads
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<unsigned> turns_;
  size_t turn_ = 0;
  std::mt19937_64 random_;
  Accesses accesses_;
  uint32_t serial_ = 0;  // of the block
  uint32_t epoch_ = 0;
  uint32_t time_ = 0;
  unsigned over_ = 0;
  std::string problem_;
  // Addresses of edges for ThreadSanitizer: begin and end of blocks, block barriers, warps'
  // barriers.
  std::array<char, 2> ends_ = {};
  std::array<char, 2> block_edges_ = {};
  std::array<char, kMostThreads / kWarp> warp_edges_ = {};
};

/// A happens-before edge that ThreadSanitizer is told of, between all that release and all that
/// acquire at an address.
void release(void* at);
void acquire(void* at);

}  // namespace q7x2::fibres
