// Runs the blocks of a grid one after another on the calling thread, each of their threads as a
// fibre, in an order of one's choice.
//
// A thread runs until it waits for others: at a block barrier, or in an operation of its warp. The
// order decides which one runs next, and which block. A correct kernel gives the same bits in all
// orders. Reported as a KernelError, and not left undefined as on a GPU:
//   - accesses that race (accesses.h), where the kernel is compiled with -fsanitize=thread
//   - a barrier that some threads of the block do not reach, or reach at another line
//   - a warp operation that a lane named in its mask does not reach
//   - reading shared memory that the block has not written; a thread's local memory read by another
//
// Not seen here: what nvcc and ptxas make of the code, memory that is visible late, occupancy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace q7x2::fibres {

/// A kernel did what no kernel may do. Names the kernel's launch, the block and the thread.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Order {
  enum class Kind : uint8_t { kForward, kBackward, kRandom };
  Kind kind = Kind::kForward;
  uint64_t seed = 0;  ///< of kRandom
};

/// The order of launches by this thread while this exists.
class WithOrder {
 public:
  explicit WithOrder(Order order);
  ~WithOrder();
  WithOrder(const WithOrder&) = delete;
  WithOrder& operator=(const WithOrder&) = delete;

 private:
  Order before_;
};

/// Kernels that this thread launches run without __syncthreads and __syncwarp while this exists: as
/// if these had been forgotten. Shuffles, votes and reductions still wait.
class WithoutBarriers {
 public:
  WithoutBarriers();
  ~WithoutBarriers();
  WithoutBarriers(const WithoutBarriers&) = delete;
  WithoutBarriers& operator=(const WithoutBarriers&) = delete;
};

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// Who finds accesses that race in this build.
enum class RaceFinder : uint8_t { kAccesses, kThreadSanitizer, kNone };
RaceFinder race_finder();

/// Runs `kernel` by every thread of every block. A kernel starts no other kernel.
void run_grid(const char* what, unsigned blocks, unsigned threads, size_t shared_bytes,
              const std::function<void()>& kernel);

// For the running thread.
Dim3 grid_size();
Dim3 block_size();
Dim3 block_index();
Dim3 thread_index();
std::byte* dynamic_shared();

/// A block barrier; returns the number of threads that came with `vote`.
unsigned sync_block(bool vote, int line);
/// Operations of a warp. They return when all lanes of `mask` have called them, at the same line
/// and with the same mask.
void sync_warp(uint32_t mask, int line);
/// What lane `source` brought. A lane that is not in the mask is an error.
uint64_t shuffle(uint32_t mask, uint64_t value, unsigned source, int line);
/// A bit for each lane that came with `vote`.
uint32_t ballot(uint32_t mask, bool vote, int line);
enum class WarpReduction : uint8_t { kAdd, kMin, kMax, kSignedMin, kSignedMax, kAnd, kOr, kXor };
uint32_t reduce(uint32_t mask, uint32_t value, WarpReduction reduction, int line);

/// An atomic access, which the compiler does not report.
void note_atomic(const void* address, size_t bytes);

/// Whether a kernel runs on this thread.
bool in_kernel();
/// Called at plain accesses, by code that is compiled with -fsanitize=thread.
void note_access(const void* address, size_t bytes, bool write);

}  // namespace q7x2::fibres
