// The life of a group: creation, options, splitting, coalescing, errors, shutdown.
#include "backend/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/argument_checks.h"
#include "backend/store_end.h"
#include "base/environment.h"
#include "fabric/json.h"
#include "transport/group/group_facts.h"

namespace q7x2 {
namespace {

// How long a rank that leaves waits for rank 0 to close the store.
constexpr std::chrono::milliseconds kStorePatience{1000};

// Works of a coalesced call that are all kept.
constexpr size_t kCoalescingLimit = 64;

}  // namespace

ProcessGroupQ7x2::ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : compat::Backend(rank, size),
      options_(std::move(options)),
      timeout_(options_->timeout),
      store_(store) {
  TORCH_CHECK(store, "q7x2 needs a store to make a group, got none");
  meet_all();
  init();
}

DevicePath ProcessGroupQ7x2::device_path_of_options() const {
  if (!options_->device_path.empty())
    return parse_device_path(options_->device_path, "device_path");
  const std::string text = environment("Q7X2_DEVICE_PATH");
  return text.empty() ? DevicePath::kAuto : parse_device_path(text, "Q7X2_DEVICE_PATH");
}

std::string ProcessGroupQ7x2::algorithms_of_group() const {
  return options_->algorithms.empty() ? environment("Q7X2_ALGO") : options_->algorithms;
}

ProcessGroupQ7x2::~ProcessGroupQ7x2() {
  if (runtime_->forked()) {
    // A store that the parent serves aborts a child that destroys its copy: it joins a thread.
    static_cast<void>(new c10::intrusive_ptr<c10d::Store>(store_));
  } else if (group_) {
    leave();
  }
}

void ProcessGroupQ7x2::leave() {
  Runtime::run_unlocked([this] { runtime_->finish_collectives(group_.get()); });
  if (servers_) servers_->group().leave();
  group_->leave();
}

void ProcessGroupQ7x2::enter() const {
  runtime_->enter();
  if (!group_) {
    throw Error(ErrorCode::kInvalidArgument,
                "the group '" + options_->name() + "' has no members yet: call reconfigure");
  }
}

Complain ProcessGroupQ7x2::enter(const char* call) const {
  enter();
  return complain(call);
}

std::string ProcessGroupQ7x2::fabric_json() const {
  enter();
  Fabric fabric = *plans_->fabric();
  if (servers_ && !servers_->is_broken()) fabric.servers = servers_->fabric()->servers;
  return to_json(fabric);
}

void ProcessGroupQ7x2::set_fabric(const std::string& json) {
  enter();
  Fabric fabric = fabric_from_json(json);
  if (servers_) servers_->set_fabric(std::make_shared<const Fabric>(fabric));
  planner_->set_fabric(without_servers(std::move(fabric)));
  plans_->clear();
}

std::chrono::milliseconds ProcessGroupQ7x2::effective(std::chrono::milliseconds timeout) const {
  return timeout < std::chrono::milliseconds::zero() ? timeout_.load() : timeout;
}

void ProcessGroupQ7x2::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  timeout_ = timeout;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::start(const c10::intrusive_ptr<WorkQ7x2>& work,
                                                       std::vector<std::shared_ptr<Task>> tasks,
                                                       std::shared_ptr<HostBuffers> buffers,
                                                       bool caller_waits,
                                                       std::vector<std::shared_ptr<Task>> after) {
  work->start(std::move(tasks), std::move(buffers), caller_waits, hook_ ? hook_->expect() : nullptr,
              std::move(after));
  add_to_coalescing(work);
  return work;
}

// Coalesced calls start at once; what they share is the Work that completes with the last of them.
// An exception between the two calls leaves out the second one. So a new beginning is the end of
// what was begun before it, whose works go on by themselves.
void ProcessGroupQ7x2::startCoalescing() {
  enter();
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_.emplace();
  coalescing_limit_ = kCoalescingLimit;
}

// Where the end never comes, works must not be held for ever.
void ProcessGroupQ7x2::add_to_coalescing(const c10::intrusive_ptr<WorkQ7x2>& work) {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (!coalescing_) {
    return;
  }
  if (coalescing_->size() >= coalescing_limit_) {
    std::erase_if(*coalescing_, [](const auto& part) { return part->has_succeeded(); });
    coalescing_limit_ = std::max(kCoalescingLimit, 2 * coalescing_->size());
  }
  coalescing_->push_back(work);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::endCoalescing() {
  enter();
  std::vector<c10::intrusive_ptr<WorkQ7x2>> parts;
  {
    const std::lock_guard<std::mutex> lock(coalescing_mutex_);
    TORCH_CHECK(coalescing_, "q7x2: endCoalescing() was called without startCoalescing()");
    parts = std::move(*coalescing_);
    coalescing_.reset();
  }
  auto work = c10::make_intrusive<WorkQ7x2>(runtime_, rank_, c10d::OpType::COALESCED, nullptr,
                                            ProfiledInputs(),
                                            std::vector<std::vector<at::Tensor>>(), sequence_);
  work->start(std::move(parts));
  return work;
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
  TORCH_CHECK(sequence_ == 0,
              "q7x2: register the on-completion hook before the group's first collective");
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
  // By this c10d knows that there is one.
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
  group_->abort(
      Error(ErrorCode::kAborted, "rank " + std::to_string(rank_) + " aborted the group", rank_));
}

// A forked child only drops its copy.
void ProcessGroupQ7x2::shutdown() {
  if (!group_ || runtime_->forked()) {
    return;
  }
  leave();
  if (rank_ > 0 && !has_successor_ && getGroupDesc() == "default_pg" && !group_->error()) {
    wait_for_end(store_, kStorePatience);
  }
}

}  // namespace q7x2
