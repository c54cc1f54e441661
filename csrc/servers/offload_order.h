// OffloadOrder: what rank 0 tells the servers of a server group (servers/server_group.h) about the
// next call.
//
// An order is one message of fixed length. Servers take the orders in the order of the calls, so
// all members give the same numbers to the collectives of the server group. The wire form is only
// for processes of one build: the members of a server group refuse other builds when it is made.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "executor/call/collective_call.h"
#include "executor/sparse/sparse_call.h"
#include "plan/choose/choice.h"
#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

/// A reduction, as far as a server must know it. A server has no tensor of its own.
struct PlannedOrder {
  CollectiveCall call;  ///< its regions have a length, but no memory
  Proposal choice;
};

/// An all-reduce of blocks that servers own.
struct SparseOrder {
  SparseCall call;        ///< its rows are on the ranks
  bool is_wanted = true;  ///< false: the servers leave it to the ranks
};

/// The Fabric on which Plans with servers are made from here on.
struct FabricOrder {
  std::string json;
};

struct OffloadOrder {
  std::variant<PlannedOrder, SparseOrder, FabricOrder> what;
  std::chrono::milliseconds timeout{0};  ///< for the call
};

/// Rank 0: sends an order to every server, without waiting. Members from `ranks` on are servers.
void send_order(const std::shared_ptr<Group>& servers, int ranks, const OffloadOrder& order);

/// A server: waits for rank 0's next order, however long that takes. Throws the server group's
/// error, or Error(kMismatch) if the bytes are not an order.
OffloadOrder receive_order(const std::shared_ptr<Group>& servers, int ranks);

}  // namespace q7x2
