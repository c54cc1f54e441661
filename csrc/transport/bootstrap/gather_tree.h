// The trees of a group: over one its ranks gather what all of them publish, over the other they
// watch each other.
//
//                 0
//        /     /     \      \ .
//       1     2  ...  31    32          with 32 branches rank r's parent is (r - 1) / 32
//     / | \ .
//   33 34 .. 64
//
// To gather, a rank reads the keys of at most 32 others, and the depth is log32 of the number of
// ranks: one level up to 33 ranks, where the leader reads the keys of all, two up to 1,057. A tree
// with fewer branches would have more levels, and each level costs the time of one message to the
// store and one back. The processes of a group watch each other over one with fewer branches,
// because each branch is a connection that stays.
#pragma once

#include <vector>

namespace q7x2 {

constexpr int kGatherBranches = 32;
constexpr int kWatchBranches = 16;

/// The ranks below `rank`, in their order.
inline std::vector<int> children_of(int rank, int size, int branches) {
  std::vector<int> children;
  for (int i = 1; i <= branches && branches * rank + i < size; ++i) {
    children.push_back(branches * rank + i);
  }
  return children;
}

inline bool has_children(int rank, int size, int branches) {
  return branches * rank + 1 < size;
}

}  // namespace q7x2
