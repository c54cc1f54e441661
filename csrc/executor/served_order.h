// ServedOrder: what rank 0 tells the servers of an annex (executor/annex.h) about the next call.
//
// An order is one message of fixed length. Servers take the orders in the order of the calls, so
// all members number the annex's collectives alike. On the wire between processes of one build:
// the cards of the annex refuse others.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "executor/collective_call.h"
#include "executor/sparse_call.h"
#include "plan/planner.h"
#include "transport/group.h"
#include "transport/task.h"

namespace q7x2 {

/// A call as a server must know it: it has no tensor of its own.
struct PlannedOrder {
  CollectiveCall call;  ///< its regions have a length, and no memory
  Proposal choice;
};

/// An all-reduce of blocks, which servers own.
struct SparseOrder {
  SparseCall call;        ///< its rows are on the ranks
  bool is_wanted = true;  ///< else the servers leave it to the ranks
};

/// The Fabric by which calls are served from here on.
struct FabricOrder {
  std::string json;
};

struct ServedOrder {
  std::variant<PlannedOrder, SparseOrder, FabricOrder> what;
  std::chrono::milliseconds timeout{0};  ///< of a call
};

/// Rank 0: sends an order to every server, without waiting. `ranks`: the members from there on are
/// servers.
void send_order(const std::shared_ptr<Group>& annex, int ranks, const ServedOrder& order);

/// A server: waits for rank 0's next order, however long that takes. Throws the annex's error, and
/// Error(kMismatch) for bytes that are no order.
ServedOrder receive_order(const std::shared_ptr<Group>& annex, int ranks);

}  // namespace q7x2
