// Makes groups that follow other groups and need no store: shrink and reconfigure. The members find
// each other by their handles (transport/bootstrap/peer_bootstrap.h).
#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "backend/c10d_store.h"
#include "backend/process_group.h"
#include "backend/server_group_setup.h"
#include "base/digest.h"
#include "executor/probe/survey.h"
#include "fabric/json.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/bootstrap/peer_bootstrap.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

constexpr int kShrinkAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
constexpr size_t kMostNamed = 16;
constexpr milliseconds kStorePatience{2000};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMostNamed; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMostNamed) {
    text += " and " + std::to_string(names.size() - kMostNamed) + " more";
  }
  return text;
}

std::string join(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    names.push_back(std::to_string(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names);
}

/// The ranks that remain. Throws Error(kInvalidArgument).
std::vector<int> survivors(const std::vector<int64_t>& excluded, int rank, int size) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "shrink: " + why);
  };
  std::set<int64_t> gone;
  for (const int64_t each : excluded) {
    if (each < 0 || each >= size) {
      refuse("rank " + std::to_string(each) + " is not in a group of " + std::to_string(size));
    }
    if (!gone.insert(each).second) {
      refuse("rank " + std::to_string(each) + " is excluded twice");
    }
  }
  if (gone.empty()) {
    refuse("no rank is excluded");
  }
  if (gone.contains(rank)) {
    refuse("rank " + std::to_string(rank) + " is excluded and must not call it");
  }
  std::vector<int> left;
  for (int each = 0; each < size; ++each) {
    if (!gone.contains(each)) {
      left.push_back(each);
    }
  }
  return left;
}

/// Throws Error(kTransport) if the store does not answer.
void check_is_served(const c10::intrusive_ptr<c10d::Store>& store) {
  try {
    C10dStore(root_of(store), kStorePatience, Runtime::check_interrupt).check("q7x2/served");
  } catch (const Error& error) {
    throw Error(ErrorCode::kTransport,
                std::string("the store is not served any more (") + error.what() + ")");
  }
}

void await_calls(Runtime& runtime, const Group& group, milliseconds timeout) {
  const TimePoint deadline = Clock::now() + timeout;
  for (const auto& task : runtime.tasks_of(group)) {
    if (!runtime.wait(*task, deadline)) {
      throw Error(ErrorCode::kTimeout, "timed out after " + std::to_string(timeout.count()) +
                                           " ms, waiting for " + task->name() +
                                           " before the group's end");
    }
  }
}

}  // namespace

ProcessGroupQ7x2::ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store,
                                   PeerBootstrap& bootstrap, std::shared_ptr<const Fabric> known,
                                   c10::intrusive_ptr<Options> options)
    : compat::Backend(bootstrap.rank(), bootstrap.size()),
      options_(std::move(options)),
      store_(store) {
  std::shared_ptr<const Fabric> learned;
  // After this exchange all ranks have the group. From here on, a failure fails the group.
  const LearnFabric agree = [&](const std::shared_ptr<Group>& group) {
    Digest digest;
    digest.add(known ? to_json(*known) : "");
    const std::string mine = known ? std::to_string(digest.value()) : "";
    const std::vector<std::string> all =
        bootstrap.exchange("fabric", mine, [&] { group->check(); });
    const bool all_know = known && std::all_of(all.begin(), all.end(),
                                               [&](const auto& each) { return each == mine; });
    if (!all_know) {
      return learned = survey(group, survey_options(options_->timeout));
    }
    adopt(*group, *known);
    return learned = known;
  };
  bootstrap.run(
      [&] {
        meet(bootstrap, {}, agree);
        auto invited = invites_servers() ? invite_servers(*group_, store_) : ServerMeeting();
        servers_ = meet_servers(*group_, bootstrap, std::move(invited), *learned,
                                survey_options(options_->timeout), algorithms_of_group());
        // No rank continues, and gives up an old group, before all have agreed on the new one.
      },
      [&](const Error& error) {
        if (group_) group_->abort(error);
      });
  {
    // From here on, torch may use other numbers for the ranks of the job.
    Locked locked(runtime_->lock());
    runtime_->groups().forget_job_ranks(locked);
  }
  init();
}

std::shared_ptr<const Fabric> ProcessGroupQ7x2::fabric_of(
    const std::vector<PeerInfo>& members) const {
  std::unordered_map<uint64_t, int> rank_of;
  for (int rank = 0; rank < size_; ++rank) {
    rank_of[group_->membership().peer_info(rank).process] = rank;
  }
  std::vector<int> ranks;
  for (const PeerInfo& member : members) {
    const auto found = rank_of.find(member.process);
    if (found == rank_of.end()) {
      return nullptr;
    }
    ranks.push_back(found->second);
  }
  std::shared_ptr<const Fabric> fabric = plans_->planner()->fabric();
  if (fabric->awaits_rates()) fabric = rates_ ? rates_->known() : nullptr;
  if (fabric == nullptr) return nullptr;
  return std::make_shared<const Fabric>(fabric->subset(ranks));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupQ7x2::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  enter();
  const std::vector<int> left = survivors(ranks_to_exclude, rank_, size_);
  TORCH_CHECK(flags == 0 || flags == kShrinkAbort, "q7x2: shrink: expected the flags 0 or ",
              kShrinkAbort, ", got ", flags);
  auto* given = dynamic_cast<Options*>(opts.get());
  TORCH_CHECK(opts == nullptr || given != nullptr,
              "q7x2: shrink needs options of the type q7x2.Options");
  auto options = c10::make_intrusive<Options>(given != nullptr ? *given : *options_);
  options->group_name = options_->group_name + ":shrunk";
  options->in_job = options_->in_job;
  options->global_ranks_in_group.clear();
  std::vector<PeerInfo> members;
  for (const int rank : left) {
    members.push_back(without_group(group_->membership().peer_info(rank)));
    if (!options_->global_ranks_in_group.empty()) {
      options->global_ranks_in_group.push_back(
          options_->global_ranks_in_group[static_cast<size_t>(rank)]);
    }
  }

  // Every rank counts the attempts, so that all ranks use the same number in the next one.
  const std::string attempt = std::to_string(++shrinks_);
  const std::string title =
      "shrink of the group '" + group_->membership().name() + "' to its " + join(left);
  PeerBootstrap bootstrap(
      *runtime_, {.title = title,
                  .scope = "shrink " + identity_of(group_->membership()),
                  .name = attempt,
                  .members = members,
                  .list = "its " + join(left),
                  .timeout = options_->timeout,
                  .check_interrupt = Runtime::check_interrupt,
                  .describe = [&](int member) {
                    return group_->membership().describe(left[static_cast<size_t>(member)]);
                  }});
  try {
    check_is_served(store_);
    if (flags == kShrinkAbort) abort();
    await_calls(*runtime_, *group_, options_->timeout);
  } catch (const Error& error) {
    const bool is_store = error.code() == ErrorCode::kTransport;
    const Error told(
        error.code(),
        title + ": " + error.what() +
            (is_store ? ", and torch.distributed needs it for the new group. The group "
                        "is unchanged. q7x2.reconfigure needs no store"
                      : ""),
        error.rank());
    bootstrap.fail(told);
    throw told;
  }
  auto successor = c10::make_intrusive<ProcessGroupQ7x2>(store_, bootstrap, fabric_of(members),
                                                         std::move(options));
  has_successor_ = true;
  return successor;
}

std::vector<std::string> ProcessGroupQ7x2::handles() const {
  enter();
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank) {
    all.push_back(
        PeerAddress{group_->membership().peer_info(rank), rank}.encode(runtime_->secret()));
  }
  return all;
}

c10::intrusive_ptr<ProcessGroupQ7x2> ProcessGroupQ7x2::reconfigured(
    const c10::intrusive_ptr<c10d::Store>& store, const Reconfiguration& how) {
  std::shared_ptr<Runtime> runtime = Runtime::instance();
  runtime->enter();
  const std::string title = "reconfigure with the uuid '" + how.uuid + "'";
  std::vector<PeerAddress> handles;
  for (const std::string& text : how.handles) {
    handles.push_back(PeerAddress::decode(text, runtime->secret()));
    // The handle may lead to an older runtime of this process. That one is used, and its error says
    // so.
    if (how.old != nullptr && handles.back().peer_info.process == how.old->runtime_->process()) {
      runtime = how.old->runtime_;
    }
  }
  if (!how.ordered) {
    handles = in_rank_order(std::move(handles));
  }
  std::vector<PeerInfo> members;
  std::vector<std::string> names;
  for (const PeerAddress& handle : handles) {
    members.push_back(handle.peer_info);
    names.push_back(describe_process(handle.peer_info));
  }
  const bool has_old = how.old != nullptr && how.old->group_ != nullptr;
  if (has_old) {
    await_calls(*how.old->runtime_, *how.old->group_, how.timeout);
  }
  auto options = c10::make_intrusive<Options>(how.options          ? *how.options
                                              : how.old != nullptr ? *how.old->options_
                                                                   : Options());
  options->timeout = how.timeout;
  options->group_name = "reconfigured " + how.uuid;
  options->in_job = how.old != nullptr && how.old->options_->in_job;
  options->global_ranks_in_group.clear();
  PeerBootstrap bootstrap(*runtime, {.title = title,
                                     .scope = "reconfigure " + how.scope,
                                     .name = how.uuid,
                                     .members = members,
                                     .list = "[" + join(names) + "]",
                                     .timeout = how.timeout,
                                     .check_interrupt = Runtime::check_interrupt});
  auto successor = c10::make_intrusive<ProcessGroupQ7x2>(
      how.old != nullptr ? how.old->store_ : store, bootstrap,
      has_old ? how.old->fabric_of(members) : nullptr, std::move(options));
  if (has_old) {
    how.old->has_successor_ = true;
  }
  return successor;
}

// ------------------------------------------------------------- the same group with other members

ProcessGroupQ7x2::ProcessGroupQ7x2(WithoutMembers, const c10::intrusive_ptr<c10d::Store>& store,
                                   int rank, int size, c10::intrusive_ptr<Options> options)
    : compat::Backend(rank, size),
      options_(std::move(options)),
      runtime_(Runtime::instance()),
      store_(store) {
  init();
}

std::string ProcessGroupQ7x2::own_handle() const {
  runtime_->enter();
  reachable_ = Runtime::instance();
  const PeerInfo peer_info = peer_info_of_process(*reachable_);
  {
    // Any host may connect, because nobody knows who gets the handle.
    Locked locked(reachable_->lock());
    reachable_->peers().admission().expect_others(locked);
  }
  return PeerAddress{peer_info, rank_}.encode(reachable_->secret());
}

std::pair<int, int> ProcessGroupQ7x2::take_members(std::string uuid,
                                                   std::vector<std::string> handles, bool ordered,
                                                   std::optional<milliseconds> timeout) {
  const auto successor =
      reconfigured(store_, {.uuid = std::move(uuid),
                            .handles = std::move(handles),
                            .ordered = ordered,
                            .timeout = timeout.value_or(calls_.effective(c10d::kUnsetTimeout)),
                            .old = this,
                            .scope = options_->group_name});
  // The successor takes the old group, and leaves it in good order when it is destroyed.
  std::swap(runtime_, successor->runtime_);
  std::swap(group_, successor->group_);
  std::swap(plans_, successor->plans_);
  std::swap(rates_, successor->rates_);
  std::swap(servers_, successor->servers_);
  calls_.count_anew();
  shrinks_ = 0;
  return {successor->rank_, successor->size_};
}

}  // namespace q7x2
