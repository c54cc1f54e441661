#include "servers/server_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/build_id.h"
#include "base/environment.h"
#include "executor/collective/collective.h"
#include "executor/collective/plan_call.h"
#include "executor/probe/courier.h"
#include "executor/probe/relay.h"
#include "executor/sparse/sparse_all_reduce.h"
#include "fabric/json.h"
#include "servers/credit_grant.h"
#include "servers/offload_order.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// Rank 0 sends this instead of a Fabric. All members then measure the servers.
constexpr std::string_view kMeasure = "measure";
// An attempt has this fraction of the call's timeout, so that time is left for the call itself.
constexpr int kShareOfTimeout = 2;

/// The key of the server's host. If a rank runs on the same host, it is the key in the ranks'
/// Fabric.
std::string key_of(const Group& servers, int ranks, const Fabric& of_ranks, int server) {
  const std::string& key = servers.membership().peer_info(server).host_key;
  for (int rank = 0; rank < ranks; ++rank) {
    if (servers.membership().peer_info(rank).host_key != key) continue;
    const auto host = static_cast<size_t>(of_ranks.host_of[static_cast<size_t>(rank)]);
    return of_ranks.hosts[host].key;
  }
  return key;
}

/// The server's rack, as the ranks' Fabric numbers racks: that of a rank which `all`, the Fabric of
/// all members, puts in the same rack as the server.
int rack_of(const Fabric& of_ranks, const Fabric& all, int server) {
  for (int rank = 0; rank < of_ranks.world_size(); ++rank) {
    if (all.rack_of(rank) == all.rack_of(server)) return of_ranks.rack_of(rank);
  }
  return 0;
}

Fabric with_measured_servers(const Fabric& of_ranks, const Fabric& all) {
  Fabric fabric = of_ranks;
  for (size_t i = 0; i < fabric.servers.size(); ++i) {
    const int member = of_ranks.world_size() + static_cast<int>(i);
    Fabric::Host server = all.hosts[static_cast<size_t>(all.host_of[static_cast<size_t>(member)])];
    server.name = fabric.servers[i].name;
    server.key = fabric.servers[i].key;
    server.rack = rack_of(of_ranks, all, member);
    fabric.servers[i] = std::move(server);
  }
  return fabric;
}

bool servers_help(const Fabric& fabric, const RowVolume& volume) {
  return seconds_by_servers(fabric, volume) < seconds_by_ranks(fabric, volume);
}

std::vector<std::string> names_of_servers(const Fabric& fabric) {
  std::vector<std::string> names;
  for (const Fabric::Host& server : fabric.servers) names.push_back(server.name);
  return names;
}

}  // namespace

std::shared_ptr<const Fabric> survey_servers(const std::shared_ptr<Group>& servers, int ranks,
                                             const Fabric* of_ranks, const SurveyOptions& options) {
  std::vector<int> order(static_cast<size_t>(servers->world_size()));
  std::iota(order.begin(), order.end(), 0);
  const auto tell = [&](const std::string& text) {
    GroupCourier courier(servers, kMaxFabricBytes, Clock::now() + options.timeout);
    return spread(courier, order, servers->rank(), text);
  };
  Fabric known;
  std::string text;
  if (servers->rank() == 0) {
    known = *of_ranks;
    for (size_t i = 0; i < known.servers.size(); ++i) {
      known.servers[i].key = key_of(*servers, ranks, known, ranks + static_cast<int>(i));
    }
    const bool is_settled = !environment("Q7X2_FABRIC").empty() || environment("Q7X2_PROBE") == "0";
    text = build_id() + '\n' + (is_settled ? to_json(known) : std::string(kMeasure));
  }
  text = tell(text);
  const size_t end = text.find('\n');
  if (text.substr(0, end) != build_id()) {
    throw Error(ErrorCode::kMismatch,
                servers->membership().describe(servers->rank()) +
                    " has another build of q7x2 than rank 0: " + build_id() + ", rank 0 has " +
                    text.substr(0, std::min<size_t>(end, 100)),
                servers->rank());
  }
  text.erase(0, end + 1);
  if (text == kMeasure) {
    const std::shared_ptr<const Fabric> all = survey(servers, options);
    if (servers->rank() == 0) text = to_json(with_measured_servers(known, *all));
    text = tell(text);
  }
  auto fabric = std::make_shared<const Fabric>(fabric_from_json(text));
  if (fabric->world_size() != ranks ||
      static_cast<int>(fabric->servers.size()) != servers->world_size() - ranks) {
    throw Error(ErrorCode::kMismatch, "rank 0 sent a Fabric that has other ranks or servers", 0);
  }
  return fabric;
}

ServerGroup::ServerGroup(std::shared_ptr<Group> group, int ranks, std::shared_ptr<Planner> planner,
                         const std::string& environment)
    : group_(std::move(group)),
      ranks_(ranks),
      planner_(std::move(planner)),
      plans_(std::make_shared<PlanCache>(planner_, group_->rank(), group_->world_size(),
                                         environment,
                                         /*refines=*/false)),
      verdicts_(std::make_shared<Verdicts>(group_, ranks_, names_of_servers(*fabric()))) {}

std::shared_ptr<OffloadAttempt> ServerGroup::new_attempt(std::chrono::milliseconds timeout) const {
  return std::make_shared<OffloadAttempt>(
      std::make_shared<CreditGrant>(group_, ranks_, CreditGrant::kMostSlots, timeout));
}

bool ServerGroup::serves(const CollectiveCall& call) const {
  const bool may_be =
      call.collective == Collective::kAllReduce || call.collective == Collective::kReduce;
  if (!may_be || call.coding || call.bytes() == 0) return false;
  return plans_->open_alone(shape_of(call))->choice().plan->helpers > 0;
}

std::shared_ptr<OffloadedCall> ServerGroup::attempt(const CollectiveCall& call, Region saved,
                                                    std::shared_ptr<void> keep_alive,
                                                    std::chrono::milliseconds timeout) {
  const CallShape shape = shape_of(call);
  PlannedCall planned{
      .call = call, .plans = plans_, .entry = plans_->open_alone(shape), .counting = {}};
  planned.call.algorithms.clear();  // an order does not carry them
  const std::chrono::milliseconds share = timeout / kShareOfTimeout;
  if (group_->rank() == 0 && !is_broken()) {
    const Choice& choice = planned.entry->choice();
    const std::string& algorithm = choice.plan->algorithm;
    PlannedOrder order{.call = planned.call,
                       .choice = {.algorithm = algorithm,
                                  .slice_bytes = choice.slice_bytes,
                                  .part_bytes = choice.part_bytes,
                                  .window = choice.window,
                                  .seconds = choice.seconds,
                                  .digest = planner_->schedule(shape, algorithm)->digest()}};
    send_order(group_, ranks_, {.what = std::move(order), .timeout = share});
  }
  const Region given = call.input.front();
  const std::shared_ptr<OffloadAttempt> attempt = new_attempt(share);
  const auto task = std::make_shared<AttemptTask<CollectiveTask>>(
      attempt, group_, std::move(planned), std::move(keep_alive), share);
  OffloadedCall::Undo undo;
  if (saved.data != nullptr) {
    undo = {[saved, given] { std::memcpy(given.data, saved.data, saved.bytes); }, saved.bytes};
  }
  return std::make_shared<OffloadedCall>(verdicts_, task, attempt, std::move(undo));
}

bool ServerGroup::serves_blocks(size_t bytes) const {
  const auto each = static_cast<double>(bytes);
  // The best case: every rank has the same blocks.
  const RowVolume all{.given = each * ranks_, .summed = each};
  return bytes > 0 && servers_help(*fabric(), all);
}

std::shared_ptr<RowCensus> ServerGroup::census_of(const SparseCall& call) {
  const std::pair key(call.bytes, call.dtype);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<RowCensus>* const known = censuses_.find(key);
  return known != nullptr ? *known : censuses_.add(key, std::make_shared<RowCensus>());
}

bool ServerGroup::wants_blocks(const RowCensus& census) const {
  const std::optional<RowVolume> last = census.last();
  return last && servers_help(*fabric(), *last);
}

std::shared_ptr<OffloadedCall> ServerGroup::attempt_blocks(SparseCall& call,
                                                           std::span<std::byte> tensor,
                                                           std::shared_ptr<void> keep_alive,
                                                           std::chrono::milliseconds timeout) {
  call.census = census_of(call);
  const auto rows = std::make_shared<BlockRows>(tensor, ranks_, servers());
  SparseCall served = call;
  served.layout = rows->layout();
  served.rows = rows;
  served.plan = kServedBlocks;
  const std::chrono::milliseconds share = timeout / kShareOfTimeout;
  if (group_->rank() == 0 && !is_broken()) {
    SparseOrder order{.call = served, .is_wanted = wants_blocks(*call.census)};
    order.call.rows.reset();
    send_order(group_, ranks_, {.what = std::move(order), .timeout = share});
  }
  const std::shared_ptr<OffloadAttempt> attempt = new_attempt(share);
  const auto task = std::make_shared<AttemptTask<SparseAllReduceTask>>(
      attempt, group_, std::move(served), std::move(keep_alive), share);
  OffloadedCall::Undo undo{.run = [rows] { rows->undo(); }, .bytes = tensor.size()};
  return std::make_shared<OffloadedCall>(verdicts_, task, attempt, std::move(undo));
}

void ServerGroup::set_fabric(std::shared_ptr<const Fabric> fabric) {
  const auto given = static_cast<int>(fabric->servers.size());
  if (given != 0 && given != servers()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a fabric with " + std::to_string(given) + " servers for a group with " +
                    std::to_string(servers()) + ": expected as many, or none");
  }
  planner_->set_fabric(fabric);
  plans_->clear();
  if (group_->rank() == 0 && given != 0 && !is_broken()) {
    send_order(group_, ranks_, {.what = FabricOrder{to_json(*fabric)}});
  }
}

}  // namespace q7x2
