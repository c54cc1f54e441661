// Small kernels for the tests of the stand-in, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <vector>

namespace q7x2::fibres::test {

/// Each block reverses its part of `threads` numbers through shared memory. Without the barrier the
/// threads read what others have yet to write.
std::vector<int> reverse_blocks(const std::vector<int>& in, unsigned threads, bool barrier);

/// The sum of all numbers: through shared memory, halved step by step. `barriers` false leaves out
/// those between the steps.
int sum_of_block(const std::vector<int>& in, bool barriers);

/// Counts of the values 0 ... 15, in dynamic shared memory, then in `counts`, over all blocks.
/// `atomic` false adds to the shared memory without atomics.
std::vector<unsigned> histogram(const std::vector<unsigned>& values, bool atomic);

/// What one warp's operations return, of each lane.
struct WarpResults {
  std::vector<int> from_next;    ///< shuffle: of lane + 1, modulo 8
  std::vector<int> from_xor;     ///< of lane ^ 5
  std::vector<int> from_above;   ///< of lane - 3, or its own, in parts of 16
  std::vector<int> from_below;   ///< of lane + 3, or its own, in parts of 16
  std::vector<double> wide;      ///< of lane 7: 64 bits
  std::vector<unsigned> ballot;  ///< of odd lanes
  std::vector<int> most;         ///< signed
  std::vector<unsigned> total;
  std::vector<int> half_least;  ///< of 16 lanes, whose halves come one after another
};
WarpResults warp_operations();

/// Lanes of a warp exchange numbers through shared memory, with __syncwarp or without.
std::vector<int> rotate_warp(bool barrier);
/// The same between the two warps of a block, where __syncwarp orders nothing.
std::vector<int> swap_warps();

// Wrong in other ways.
void barrier_in_one_branch();
void two_barriers();
void lane_that_does_not_come();
void mask_without_itself();
void unwritten_shared();
void blocks_write_one_word();
void local_memory_of_another();
void launch_in_kernel();

/// The number of the thread that was the last to add, in the order they ran.
std::vector<unsigned> order_of_threads(unsigned threads);

}  // namespace q7x2::fibres::test
