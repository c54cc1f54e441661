// The coding pass: a dense Schedule becomes one whose messages are compressed on some edges.
//
//   dense    0: send in[1] ----------------> 1: recv scratch[0]     1: in[1] + scratch[0] -> out[1]
//   coded    0: in[1] -> coded[0], send it -> 1: recv coded[0]      1: in[1] + coded[0] -> out[1]
//
// The pass rewrites the Plan of each rank, op by op, without a look at other ranks:
//
//   sends     what crosses a coded edge is encoded once, however many receive it
//   results   if they cross a coded edge anywhere, they are encoded once, by whoever makes them,
//   and
//             passed on as they came over all edges. Everybody decodes the same bytes, the one who
//             made them included, so all ranks end bit-identical
//   folds     coded operands are decoded as they are added, in the order of the dense Plan. A rank
//             that sends a partial sum and folds it as well, as in an exchange, folds what the
//             others decode
//   residual  is added where this rank's contribution is used first: as it is encoded, as it is
//             folded, or in a scratch block of its own that is sent. The caller's input is only
//             read
//
// What comes after what follows from the blocks: each op waits for those that it must not overtake.
#pragma once

#include "plan/ir/edge_coding.h"
#include "plan/ir/schedule.h"

namespace q7x2 {

/// `dense`: of an all_reduce, a reduce_scatter or an all_gather.
Schedule code(const Schedule& dense, const EdgeCoding& edges);

/// Whether results are coded: their owners encode them, and all messages with them are coded.
bool codes_results(const Schedule& dense, const EdgeCoding& edges);

/// How often a contribution is encoded on its way into a sum, at most; results are not counted. A
/// codec that loses something should not do so again at each hop.
int encodings_on_the_way(const Schedule& dense, const EdgeCoding& edges);

}  // namespace q7x2
