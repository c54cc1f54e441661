// The coding pass: a dense Schedule becomes one whose messages are compressed on some edges.
//
//   dense    0: send in[1] ----------------> 1: recv scratch[0]     1: in[1] + scratch[0] -> out[1]
//   coded    0: in[1] -> coded[0], send it -> 1: recv coded[0]      1: in[1] + coded[0] -> out[1]
//
// The pass rewrites the Plan of each rank, op by op, without using the Plans of other ranks:
//
//   sends     a block that crosses a coded edge is encoded once for all its receivers
//   results   if they cross a coded edge anywhere, their owners encode them once, and all edges
//             carry the same bytes. All ranks decode these bytes, the owner included, so all
//             ranks end bit-identical
//   folds     coded operands are decoded while they are added, in the order of the dense Plan. A
//             rank that sends a partial sum and also folds it, as in an exchange, folds the
//             value that the others decode
//   residual  is added when this rank's contribution is first used: while it is encoded, while it
//             is folded, or in a scratch block of its own that is sent. The caller's input is
//             only read
//
// The order of the ops follows from the blocks: each op waits for those that it must not overtake.
#pragma once

#include "plan/ir/edge_coding.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// `dense`: the Schedule of an all_reduce, a reduce_scatter or an all_gather.
Schedule code(const Schedule& dense, const EdgeCoding& edges);

/// Whether results are coded: their owners encode them, and all messages that carry them are coded.
bool codes_results(const Schedule& dense, const EdgeCoding& edges);

/// The largest number of times that a contribution is encoded on its way into a sum; results do not
/// count. A lossy codec should not lose something at each hop.
int encodings_on_the_way(const Schedule& dense, const EdgeCoding& edges);

}  // namespace q7x2
