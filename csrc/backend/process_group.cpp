// The life of a group: options, splitting, errors, and shutdown.
#include "backend/process_group.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "backend/store_end.h"
#include "base/environment.h"
#include "fabric/json.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

// How long a rank that leaves waits until rank 0 closes the store.
constexpr std::chrono::milliseconds kStorePatience{1000};
// How long a rank that leaves waits until the others' kernels have what it has sent.
constexpr std::chrono::milliseconds kDeliveryPatience{1000};
constexpr std::chrono::microseconds kDeliveryPause{200};

// The process may end as soon as its last group is destroyed, before the Runtime closes its
// connections: from torch 2.15 on, what a group holds may outlive the call.
void await_delivery(Runtime& runtime) {
  const TimePoint give_up = Clock::now() + kDeliveryPatience;
  const auto is_delivered = [&] {
    Locked locked(runtime.lock());
    return runtime.reactor().unacknowledged_bytes(locked, {}) == 0;
  };
  while (!is_delivered() && Clock::now() < give_up) {
    runtime.drive();
    std::this_thread::sleep_for(kDeliveryPause);
  }
}

}  // namespace

ProcessGroupQ7x2::ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : compat::Backend(rank, size), options_(std::move(options)), store_(store) {
  TORCH_CHECK(store, "q7x2 needs a store to make a group, got none");
  meet_all();
  init();
}

std::string ProcessGroupQ7x2::algorithms_of_group() const {
  return options_->algorithms.empty() ? environment("Q7X2_ALGO") : options_->algorithms;
}

ProcessGroupQ7x2::~ProcessGroupQ7x2() {
  if (runtime_->forked()) {
    // The copy of the store is leaked. If the parent serves the store, destroying the copy in the
    // child joins a thread that the child does not have, and aborts.
    static_cast<void>(new c10::intrusive_ptr<c10d::Store>(store_));
    static_cast<void>(new std::shared_ptr<DeferredRates>(rates_));  // has a thread of the parent
  } else if (group_) {
    rates_.reset();
    leave();
  }
}

void ProcessGroupQ7x2::leave() {
  Runtime::run_unlocked([this] { runtime_->finish_collectives(group_.get()); });
  if (servers_) servers_->group().leave();
  group_->leave();
}

std::string ProcessGroupQ7x2::fabric_json() const {
  enter();
  const std::shared_ptr<const Fabric> known = plans_->fabric();
  Fabric fabric = known->awaits_rates() && rates_ ? *rates_->fabric() : *known;
  if (servers_ && !servers_->is_broken()) fabric.servers = servers_->fabric()->servers;
  return to_json(fabric);
}

std::vector<PlanCache::Record> ProcessGroupQ7x2::plan_records() const {
  enter();
  std::vector<PlanCache::Record> records = plans_->records();
  if (servers_) std::ranges::move(servers_->records(), std::back_inserter(records));
  return records;
}

void ProcessGroupQ7x2::set_fabric(const std::string& json) {
  enter();
  Fabric fabric = fabric_from_json(json);
  if (servers_) servers_->set_fabric(std::make_shared<const Fabric>(fabric));
  if (rates_) rates_->drop();
  plans_->set_fabric(without_servers(std::move(fabric)));
}

void ProcessGroupQ7x2::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  calls_.set_timeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupQ7x2::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  enter();
  const auto it = std::find(ranks.begin(), ranks.end(), rank_);
  if (it == ranks.end()) {
    return nullptr;
  }
  std::string members;
  for (const int rank : ranks) {
    TORCH_CHECK(rank >= 0 && rank < size_, "q7x2: split: rank ", rank, " is not in a group of ",
                size_);
    members.append("_").append(std::to_string(rank));
  }
  auto* options = dynamic_cast<Options*>(opts.get());
  TORCH_CHECK(options != nullptr, "q7x2: split needs options of the type q7x2.Options");
  const auto child =
      c10::make_intrusive<c10d::PrefixStore>("q7x2/split/" + options->group_name + members, store);
  auto copy = c10::make_intrusive<Options>(*options);
  copy->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    copy->global_ranks_in_group.push_back(
        options_->global_ranks_in_group.empty()
            ? static_cast<uint64_t>(rank)
            : options_->global_ranks_in_group[static_cast<size_t>(rank)]);
  }
  return c10::make_intrusive<ProcessGroupQ7x2>(child, static_cast<int>(it - ranks.begin()),
                                               static_cast<int>(ranks.size()), std::move(copy));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupQ7x2::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank, const int& size) {
  enter();
  auto* options = dynamic_cast<Options*>(opts.get());
  TORCH_CHECK(options != nullptr, "q7x2: merge needs options of the type q7x2.Options");
  const auto child =
      c10::make_intrusive<c10d::PrefixStore>("q7x2/merge/" + options->group_name, store);
  auto copy = c10::make_intrusive<Options>(*options);
  copy->in_job = false;  // the others may have another default group
  copy->global_ranks_in_group.clear();
  return c10::make_intrusive<ProcessGroupQ7x2>(child, rank, size, std::move(copy));
}

std::vector<std::string> ProcessGroupQ7x2::transports(int rank) {
  enter();
  return transports_of(*group_, rank);
}

void ProcessGroupQ7x2::eagerConnectSingleDevice(at::Device) {
  enter();
  connect_all(*group_);
}

c10d::ErrorType ProcessGroupQ7x2::getError() {
  const std::optional<Error> error = group_ ? group_->error() : std::nullopt;
  if (!error) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (error->code()) {
    case ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerFailed:
    case ErrorCode::kPeerLeft:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupQ7x2::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  enter();
  TORCH_CHECK(hook_ == nullptr, "q7x2: an on-completion hook is already registered for this group");
  TORCH_CHECK(calls_.sequence() == 0,
              "q7x2: register the on-completion hook before the group's first collective");
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
  calls_.set_hook(hook_);
  // This tells c10d that a hook is registered.
  onCompletionHook_ = [hook = hook_](std::shared_ptr<c10d::WorkInfo> info) {
    hook->call(std::move(info));
  };
}

void ProcessGroupQ7x2::waitForPendingWorks() {
  if (!group_ || runtime_->forked()) {
    return;
  }
  for (const auto& task : runtime_->tasks_of(*group_)) {
    runtime_->wait(*task, TimePoint::max());
  }
  if (hook_) {
    hook_->wait();
  }
}

void ProcessGroupQ7x2::abort() {
  if (!group_) {
    return;
  }
  calls_.events().tell_abort();
  group_->abort(
      Error(ErrorCode::kAborted, "rank " + std::to_string(rank_) + " aborted the group", rank_));
}

// A forked child does nothing: the group belongs to its parent.
void ProcessGroupQ7x2::shutdown() {
  if (!group_ || runtime_->forked()) {
    return;
  }
  leave();
  if (has_successor_ || getGroupDesc() != "default_pg" || group_->error()) return;
  Runtime::run_unlocked([this] { await_delivery(*runtime_); });
  if (rank_ > 0) wait_for_end(store_, kStorePatience);
}

}  // namespace q7x2
