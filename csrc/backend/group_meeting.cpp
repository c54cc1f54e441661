// Makes a new group of init_process_group, new_group, split or merge: the ranks meet, and learn
// their Fabric.
#include <cstdlib>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <torch/version.h>

#include "backend/peer_meeting.h"
#include "backend/process_group.h"
#include "backend/server_group_setup.h"
#include "backend/store_meeting.h"
#include "base/environment.h"
#include "executor/collective/plan_call.h"
#include "executor/probe/survey.h"
#include "kernels/cpu/reduce.h"
#include "plan/algorithms/algorithm_names.h"

namespace q7x2 {
namespace {

// Whether calls may change a choice. Not with deterministic algorithms, because other Plans may
// give other bits.
bool refines(const ProcessGroupQ7x2::Options& options) {
  const char* from_environment = std::getenv("Q7X2_REFINE");
  const std::string_view wish = from_environment == nullptr ? "1" : from_environment;
  if (wish != "0" && wish != "1") {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_REFINE=" + std::string(wish) + ": expected 0 or 1");
  }
  return wish == "1" && options.refine && !at::globalContext().deterministicAlgorithms();
}

// The shortest time between two changes of Plans because of links; 0: no changes. There are none if
// `refines` is false.
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

DevicePath device_path_of(const ProcessGroupQ7x2::Options& options) {
  if (!options.device_path.empty()) return parse_device_path(options.device_path, "device_path");
  const std::string text = environment("Q7X2_DEVICE_PATH");
  return text.empty() ? DevicePath::kAuto : parse_device_path(text, "Q7X2_DEVICE_PATH");
}

// Warns once per host: only its first rank does.
void warn_of_transports(Runtime& runtime) {
  const char* local_rank = std::getenv("LOCAL_RANK");
  for (const std::string& warning : runtime.take_warnings()) {
    if (local_rank == nullptr || std::string_view(local_rank) == "0") {
      TORCH_WARN("q7x2: ", warning);
    }
  }
}

/// What this process knows of the members. Ranks may learn rates at different times. So while the
/// latencies are there they count, and `probe` finds the rates.
KnownFabric known_of(const std::vector<PeerInfo>& members,
                     std::shared_ptr<BackgroundProbe>& probe) {
  const Placement placement = placement_of(members);
  probe = BackgroundProbe::of(placement);
  return probe ? KnownFabric(*probe->part(placement)) : recall(members);
}

}  // namespace

void ProcessGroupQ7x2::meet_all() {
  const auto abort = [this](const Error& error) {
    if (group_) group_->abort(error);
  };
  std::string scope;
  std::vector<PeerInfo> members;
  const std::shared_ptr<Runtime> runtime = options_->in_job ? Runtime::existing() : nullptr;
  if (runtime) {
    members = PeerMeeting::members_of(*runtime, options_->global_ranks_in_group, scope);
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
                      .group = options_->name(),
                      .timeout = options_->timeout},
                     make, abort);
    return;
  }
  StoreMeeting::run(store_,
                    {.rank = rank_,
                     .size = size_,
                     .group = options_->name(),
                     .timeout = options_->timeout,
                     .job_ranks = options_->global_ranks_in_group,
                     .in_job = options_->in_job,
                     .waits_for = [this](int rank) { set_awaited(*group_, rank); }},
                    make, abort);
}

void ProcessGroupQ7x2::meet_in_job(Bootstrap& bootstrap, KeyStore& root,
                                   const std::vector<PeerInfo>& members) {
  SurveyOptions options = survey_options(options_->timeout);
  options.exchange = [&](const std::string& mine) {
    return bootstrap.exchange("latencies", mine, [this] { group_->check(); });
  };
  std::shared_ptr<BackgroundProbe> probe;
  const KnownFabric known = members.empty() ? KnownFabric() : known_of(members, probe);
  ServerMeeting servers;
  std::string decision;
  GroupTerms terms;
  const bool may_await =
      !members.empty() && invites_servers() && may_await_servers(root, options_->group_name);
  terms.announcement = announcement_of_process(known, may_await);
  terms.decide = [&](const std::vector<PeerInfo>& all) {
    return invites_servers() && awaits_servers(root) ? "" : decide_fabric(all, options);
  };
  terms.learn = [&](std::string decided) { decision = std::move(decided); };
  bool is_known = false;
  std::shared_ptr<const Fabric> surveyed;
  meet(bootstrap, terms, [&](const std::shared_ptr<Group>& group) {
    if (decision.empty() && !members.empty()) {
      decision = agreed_fabric(group->membership().peer_infos(), known, options);
      is_known = !decision.empty();
    }
    if (!decision.empty()) return surveyed = survey(group, options, decision);
    SurveyOptions at_once = survey_options(options_->timeout);
    at_once.servers = [&] {
      if (invites_servers()) servers = invite_servers(*group, root);
      return servers.names();
    };
    return surveyed = survey(group, at_once);
  });
  if (!surveyed->servers.empty()) {
    servers_ = meet_servers(*group_, bootstrap, std::move(servers), *surveyed,
                            survey_options(options_->timeout), algorithms_of_group());
  }
  bootstrap.finish([this] { group_->check(); });
  if (options_->in_job) {
    runtime_->groups().set_job_ranks(*group_, options_->global_ranks_in_group);
  }
  if (!surveyed->awaits_rates()) return;
  if (!is_known) probe = BackgroundProbe::begin(*group_, surveyed, options);
  rates_ = std::make_shared<DeferredRates>(std::move(probe), surveyed, plans_, group_);
}

void ProcessGroupQ7x2::meet(Bootstrap& bootstrap, GroupTerms terms, const LearnFabric& learn) {
  runtime_ = Runtime::instance();
  reduce_isa();  // makes a wrong Q7X2_ISA an error here instead of in the first reduction
  warn_of_transports(*runtime_);
  const bool refine = refines(*options_);
  const std::chrono::milliseconds pause = pause_of_reactions(refine);
  OwnPlans own_plans = plan_files_of_environment();
  terms.attached_hook = environment("Q7X2_ATTACH");
  terms.algorithms = to_string(parse_algorithms(algorithms_of_group()));
  if (const std::string names = names_of(own_plans, size_); !names.empty()) {
    terms.algorithms += (terms.algorithms.empty() ? "" : " and ") + names;
  }
  if (terms.announcement.empty()) terms.announcement = announcement_of_process();
  terms.eager = options_->eager_connect;
  terms.device_path = device_path_of(*options_);
  group_ = make_group(*runtime_, rank_, size_, options_->name(), bootstrap, terms);
  auto planner = std::make_shared<Planner>(rank_, without_servers(*learn(group_)),
                                           algorithms_of_group(), std::move(own_plans));
  plans_ = std::make_shared<PlanCache>(std::move(planner), rank_, size_, environment_of_plans(),
                                       refine, pause);
  runtime_->record(*group_, options_->global_ranks_in_group);
}

SurveyOptions ProcessGroupQ7x2::survey_options(std::chrono::milliseconds timeout) {
  return {.warn = [](const std::string& sentence) { TORCH_WARN("q7x2: ", sentence); },
          .torch = TORCH_VERSION,
          .timeout = timeout};
}

}  // namespace q7x2
