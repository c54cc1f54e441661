// The life of a group: creation, options, splitting, errors, shutdown.
#include "backend/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <torch/version.h>

#include "backend/peer_meeting.h"
#include "backend/store_end.h"
#include "backend/store_meeting.h"
#include "base/environment.h"
#include "executor/collective/plan_call.h"
#include "executor/probe/survey.h"
#include "fabric/json.h"
#include "kernels/cpu/reduce.h"
#include "plan/algorithms/algorithm_names.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

// How long a rank that leaves waits for rank 0 to close the store.
constexpr std::chrono::milliseconds kStorePatience{1000};

// Who wants the same bits in every run wants the same Plans.
bool refines(const ProcessGroupQ7x2::Options& options) {
  const char* from_environment = std::getenv("Q7X2_REFINE");
  const std::string_view wish = from_environment == nullptr ? "1" : from_environment;
  if (wish != "0" && wish != "1") {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_REFINE=" + std::string(wish) + ": expected 0 or 1");
  }
  return wish == "1" && options.refine && !at::globalContext().deterministicAlgorithms();
}

// The least time between two changes of Plans because of links; 0: there are none. Who wants the
// same bits in every run wants none.
std::chrono::milliseconds pause_of_reactions(bool refines) {
  constexpr std::chrono::milliseconds kDefault{30'000};
  constexpr double kMostSeconds = 1e6;
  const char* from_environment = std::getenv("Q7X2_REACT");
  if (from_environment == nullptr) return refines ? kDefault : std::chrono::milliseconds::zero();
  char* end = nullptr;
  const double seconds = std::strtod(from_environment, &end);
  if (end == from_environment || *end != 0 || !(seconds >= 0) || seconds > kMostSeconds) {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_REACT=" + std::string(from_environment) +
                    ": expected seconds between two changes, or 0 for none");
  }
  return std::chrono::milliseconds(refines ? static_cast<int64_t>(seconds * 1000) : 0);
}

// Of all ranks on a host, the first speaks.
void warn_of_transports(Runtime& runtime) {
  const char* local_rank = std::getenv("LOCAL_RANK");
  for (const std::string& warning : runtime.take_warnings()) {
    if (local_rank == nullptr || std::string_view(local_rank) == "0") {
      TORCH_WARN("q7x2: ", warning);
    }
  }
}

/// By which the calls of the ranks alone are planned.
std::shared_ptr<const Fabric> without_servers(Fabric fabric) {
  fabric.servers.clear();
  return std::make_shared<const Fabric>(std::move(fabric));
}

std::string name_of(const ProcessGroupQ7x2::Options& options) {
  return options.group_name.empty() ? "unnamed" : options.group_name;
}

}  // namespace

ProcessGroupQ7x2::ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : compat::Backend(rank, size), options_(std::move(options)), store_(store) {
  TORCH_CHECK(store, "q7x2 needs a store to make a group, got none");
  meet_all();
  init();
}

void ProcessGroupQ7x2::meet_all() {
  const auto abort = [this](const Error& error) {
    if (group_) group_->abort(error);
  };
  std::string scope;
  std::vector<PeerInfo> members;
  const std::shared_ptr<Runtime> runtime = options_->in_job ? Runtime::existing() : nullptr;
  if (runtime) {
    members = PeerMeeting::members_of(*runtime, options_->global_ranks_in_group, scope);
    // A merged group has the options of one of its parts, and only the store knows the others.
    if (members.size() != static_cast<size_t>(size_)) members.clear();
  }
  const auto make = [&](Bootstrap& bootstrap, KeyStore& root) {
    meet_in_job(bootstrap, root, members);
  };
  if (!members.empty()) {
    PeerMeeting::run(*runtime, store_,
                     {.members = members,
                      .job_ranks = options_->global_ranks_in_group,
                      .scope = scope,
                      .rank = rank_,
                      .group = name_of(*options_),
                      .timeout = options_->timeout},
                     make, abort);
    return;
  }
  StoreMeeting::run(store_,
                    {.rank = rank_,
                     .size = size_,
                     .group = name_of(*options_),
                     .timeout = options_->timeout,
                     .job_ranks = options_->global_ranks_in_group,
                     .in_job = options_->in_job,
                     .waits_for = [this](int rank) { set_awaited(*group_, rank); }},
                    make, abort);
}

void ProcessGroupQ7x2::meet_in_job(Bootstrap& bootstrap, KeyStore& root,
                                   const std::vector<PeerInfo>& members) {
  const SurveyOptions options = survey_options(options_->timeout);
  const KnownFabric known = members.empty() ? KnownFabric() : recall(members);
  ServerMeeting servers;
  const auto invite = [&] {
    servers = invited_servers(root);
    return servers.names();
  };
  std::string decision;
  GroupTerms terms;
  terms.announcement = announcement_of_process(known, !members.empty() && may_await_servers(root));
  terms.decide = [&](const std::vector<PeerInfo>& all) {
    return awaits_servers(root) ? "" : decide_fabric(all, options);
  };
  terms.learn = [&](std::string decided) { decision = std::move(decided); };
  std::shared_ptr<const Fabric> surveyed;
  meet(bootstrap, terms, [&](const std::shared_ptr<Group>& group) {
    if (decision.empty() && !members.empty()) {
      decision = agreed_fabric(group->membership().peer_infos(), known, options);
    }
    surveyed = decision.empty() ? measured(group, invite) : survey(group, options, decision);
    return surveyed;
  });
  if (!surveyed->servers.empty()) meet_servers(bootstrap, std::move(servers), *surveyed);
  bootstrap.finish([this] { group_->check(); });
  if (options_->in_job) {
    runtime_->groups().set_job_ranks(*group_, options_->global_ranks_in_group);
  }
}

void ProcessGroupQ7x2::meet(Bootstrap& bootstrap, GroupTerms terms, const LearnFabric& learn) {
  runtime_ = Runtime::instance();
  reduce_isa();  // so that a wrong Q7X2_ISA is an error here, and not in the first reduction
  warn_of_transports(*runtime_);
  const bool refine = refines(*options_);
  const std::chrono::milliseconds pause = pause_of_reactions(refine);
  OwnPlans own_plans = plan_files_of_environment();
  terms.algorithms = to_string(parse_algorithms(algorithms_of_group()));
  if (const std::string names = names_of(own_plans, size_); !names.empty()) {
    terms.algorithms += (terms.algorithms.empty() ? "" : " and ") + names;
  }
  terms.eager = options_->eager_connect;
  terms.device_path = device_path_of_options();
  group_ = make_group(*runtime_, rank_, size_, name_of(*options_), bootstrap, terms);
  planner_ = std::make_shared<Planner>(rank_, without_servers(*learn(group_)),
                                       algorithms_of_group(), std::move(own_plans));
  plans_ =
      std::make_shared<PlanCache>(planner_, rank_, size_, environment_of_plans(), refine, pause);
  runtime_->record(*group_, options_->global_ranks_in_group);
}

SurveyOptions ProcessGroupQ7x2::survey_options(std::chrono::milliseconds timeout) {
  return {.warn = [](const std::string& sentence) { TORCH_WARN("q7x2: ", sentence); },
          .torch = TORCH_VERSION,
          .timeout = timeout};
}

std::shared_ptr<const Fabric> ProcessGroupQ7x2::measured(
    const std::shared_ptr<Group>& group, std::function<std::vector<std::string>()> servers) const {
  SurveyOptions options = survey_options(options_->timeout);
  if (servers) options.servers = std::move(servers);
  return survey(group, options);
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
  return c10::make_intrusive<ProcessGroupQ7x2>(child, rank, size,
                                               c10::make_intrusive<Options>(*options));
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
