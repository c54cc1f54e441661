// What a sparse all-reduce costs, and whether servers are to add up its rows.
//
// Each rank has g bytes of rows, and the sum has s. Members that own a share of the rows get them
// from all ranks and send the sum to all of them (executor/sparse/sparse_all_reduce.h):
//
//   owners                 a rank sends           receives               a server sends, receives
//   the n ranks            (n-1)/n (g + s)        (n-1)/n (g + s)
//   k servers              g                      s                      n s / k,  n g / k
//
// Where all ranks have other rows, s is n g, and both cost a rank the same: what counts is to
// receive the sum. Where they have the same rows, s is g, and servers save it almost half.
#pragma once

#include "fabric/fabric.h"

namespace q7x2 {

/// Bytes of rows, as sent without headers.
struct RowVolume {
  double given = 0;   ///< rows of all ranks together
  double summed = 0;  ///< rows of the sum
};

/// The predicted time in seconds: of the slowest NIC, cable or core, all at work at once.
double seconds_by_ranks(const Fabric& fabric, const RowVolume& volume);
/// The same where the Fabric's servers own the rows, with the messages that precede and follow an
/// attempt. Infinite without servers.
double seconds_by_servers(const Fabric& fabric, const RowVolume& volume);

}  // namespace q7x2
