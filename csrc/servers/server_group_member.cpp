// A server's side of a server group: it carries out rank 0's orders, in their order.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "executor/call/slicing.h"
#include "executor/collective/collective.h"
#include "executor/collective/plan_call.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "fabric/json.h"
#include "servers/credit_grant.h"
#include "servers/offload_order.h"
#include "servers/server_group.h"
#include "servers/slot_pool.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// With fewer slots a rank would often have to wait for a result before it may send.
constexpr size_t kFewestSlots = 4;

class Follower {
 public:
  Follower(std::shared_ptr<Group> servers, int ranks, std::shared_ptr<const Fabric> fabric,
           const std::string& environment, std::shared_ptr<SlotPool> pool)
      : servers_(std::move(servers)),
        ranks_(ranks),
        planner_(std::make_shared<Planner>(servers_->rank(), std::move(fabric), "")),
        plans_(std::make_shared<PlanCache>(planner_, servers_->rank(), servers_->world_size(),
                                           environment, /*refines=*/false)),
        pool_(std::move(pool)) {}

  void carry_out(OffloadOrder&& order) {
    while (!tasks_.empty() && tasks_.front()->done()) tasks_.pop_front();
    timeout_ = order.timeout;
    std::visit([this](auto&& what) { carry_out(std::move(what)); }, std::move(order.what));
  }
  uint64_t declined() const { return declined_; }

 private:
  void carry_out(FabricOrder&& order) {
    planner_->set_fabric(std::make_shared<const Fabric>(fabric_from_json(order.json)));
  }

  void carry_out(PlannedOrder&& order) {
    const CallShape shape = shape_of(order.call);
    PlannedCall planned{.call = std::move(order.call),
                        .plans = plans_,
                        .entry = plans_->adopt(shape, order.choice),
                        .counting = {}};
    const auto slots = slots_for(planned);
    attend<CollectiveTask>(slots, std::move(planned), slots);
  }

  void carry_out(SparseOrder&& order) {
    const auto slots = std::make_shared<TakenSlots>(
        pool_, SparseAllReduceTask::memory_of_owner(order.call), 1, order.is_wanted ? 1 : 0);
    attend<SparseAllReduceTask>(order.is_wanted ? slots : nullptr, std::move(order.call), slots);
  }

  std::shared_ptr<TakenSlots> slots_for(const PlannedCall& planned) const {
    const Choice& choice = planned.entry->choice();
    const size_t slices = Slicing(planned.call, choice).num_slices();
    const size_t window = std::min({static_cast<size_t>(choice.window), std::max<size_t>(slices, 1),
                                    size_t{CreditGrant::kMostSlots}});
    return std::make_shared<TakenSlots>(pool_, choice.plan->num_scratch * choice.part_bytes,
                                        std::min(window, kFewestSlots), window);
  }

  /// `slots`: null if rank 0 does not want the attempt.
  template <typename CallTask, typename Call>
  void attend(const std::shared_ptr<TakenSlots>& slots, Call&& call,
              std::shared_ptr<void> keep_alive) {
    uint8_t count = CreditGrant::kUnwanted;
    if (slots) {
      count = static_cast<uint8_t>(slots->count());
      declined_ += count == 0 ? 1 : 0;
    }
    const auto attempt = std::make_shared<OffloadAttempt>(
        std::make_shared<CreditGrant>(servers_, ranks_, count, timeout_));
    const auto task = std::make_shared<AttemptTask<CallTask>>(
        attempt, servers_, std::forward<Call>(call), std::move(keep_alive), timeout_);
    tasks_.push_back(task);
    servers_->runtime().submit(task, /*caller_waits=*/false);
    if (slots) task->notify([slots] { slots->give_back(); });
  }

  const std::shared_ptr<Group> servers_;
  const int ranks_;
  const std::shared_ptr<Planner> planner_;
  const std::shared_ptr<PlanCache> plans_;
  const std::shared_ptr<SlotPool> pool_;
  std::chrono::milliseconds timeout_{0};  // the last order's
  std::deque<std::shared_ptr<Task>> tasks_;
  uint64_t declined_ = 0;
};

}  // namespace

uint64_t follow_orders(const std::shared_ptr<Group>& servers, int ranks,
                       std::shared_ptr<const Fabric> fabric, const std::string& environment,
                       const std::shared_ptr<SlotPool>& pool) {
  Follower follower(servers, ranks, std::move(fabric), environment, pool);
  while (true) {
    OffloadOrder order;
    try {
      order = receive_order(servers, ranks);
    } catch (const Error&) {
      // The ranks have left, or the server group has failed.
      if (servers->error()) throw Error(*servers->error());
      return follower.declined();
    }
    try {
      follower.carry_out(std::move(order));
    } catch (const Error& error) {
      servers->abort(error);
      throw;
    }
  }
}

}  // namespace q7x2
