// The tree over which the ranks of a rendezvous gather what all of them publish.
//
//                 0
//        /     /     \      \ .
//       1     2  ...  15    16          rank r's parent is (r - 1) / 16
//     / | \ .
//   17 18 .. 32
//
// A rank reads the keys of at most 16 others, and the depth is log16 of the number of ranks: two
// levels for a host, three for 4,096 ranks. A tree with fewer branches would have more levels, and
// each level costs the time of one message to the store and one back. Up to 17 ranks the leader
// reads the keys of all.
#pragma once

#include <vector>

namespace q7x2 {

constexpr int kTreeBranches = 16;

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
