#include "backend/peer_meeting.h"

#include <algorithm>
#include <optional>

#include "transport/bootstrap/peer_address.h"
#include "transport/group/group.h"
#include "transport/run/group_facts.h"

namespace q7x2 {
namespace {

// The store is only needed to name missing ranks. It may be gone with the process that served it.
constexpr std::chrono::milliseconds kStorePatience{2000};

/// Names the members that make another group, or none, as far as the store knows.
class Whereabouts {
 public:
  Whereabouts(KeyStore& root, const PeerMeeting::Options& options) : options_(options) {
    try {
      announcements_.emplace(root, job_rank(options.rank), options.group);
    } catch (const Error&) {
      // Without the store, missing ranks cannot be named.
    }
  }

  std::vector<int> missing() const {
    std::vector<int> missing;
    try {
      for (int rank = 0; announcements_ && rank < static_cast<int>(options_.members.size());
           ++rank) {
        if (!announcements_->makes_the_same(job_rank(rank))) missing.push_back(rank);
      }
    } catch (const Error&) {
      return {};
    }
    return missing;
  }
  std::string explain(int rank) const {
    try {
      return announcements_ ? announcements_->of(job_rank(rank)) : "";
    } catch (const Error&) {
      return "";
    }
  }

 private:
  uint64_t job_rank(int rank) const { return options_.job_ranks[static_cast<size_t>(rank)]; }

  const PeerMeeting::Options& options_;
  std::optional<Announcements> announcements_;
};

std::string list_of(const std::vector<uint64_t>& ranks) {
  std::string text;
  for (const uint64_t rank : ranks) text += (text.empty() ? "[" : ", ") + std::to_string(rank);
  return text + "]";
}

}  // namespace

std::vector<PeerInfo> PeerMeeting::members_of(Runtime& runtime,
                                              const std::vector<uint64_t>& job_ranks,
                                              std::string& scope) {
  Locked locked(runtime.lock());
  const Group* const all = runtime.groups().default_group(locked);
  if (all == nullptr || job_ranks.empty()) return {};
  std::vector<PeerInfo> members;
  for (const uint64_t rank : job_ranks) {
    if (rank >= static_cast<uint64_t>(all->world_size())) return {};
    members.push_back(without_group(all->membership().peer_info(static_cast<int>(rank))));
  }
  scope = "group of " + identity_of(all->membership());
  return members;
}

void PeerMeeting::run(Runtime& runtime, const c10::intrusive_ptr<c10d::Store>& store,
                      const Options& options,
                      const std::function<void(Bootstrap&, KeyStore&)>& make,
                      const std::function<void(const Error&)>& abort) {
  C10dStore root(root_of(store), std::min(options.timeout, kStorePatience),
                 Runtime::check_interrupt);
  PeerMemberMonitor monitor(options.job_ranks);
  const Whereabouts whereabouts(root, options);
  const std::string title =
      cannot_make(options.rank, static_cast<int>(options.members.size()), options.group);
  PeerBootstrap bootstrap(runtime,
                          {.title = title,
                           .scope = options.scope,
                           .name = options.group,
                           .is_repeatable = true,
                           .members = options.members,
                           .list = "ranks of the job " + list_of(options.job_ranks),
                           .timeout = options.timeout,
                           .check_interrupt = Runtime::check_interrupt,
                           .monitor = &monitor,
                           .missing = [&] { return whereabouts.missing(); },
                           .explain_missing = [&](int rank) { return whereabouts.explain(rank); }});
  const auto fail = [&](const Error& error) {
    bootstrap.fail(titled(error, title, options.rank));
    abort(error);
  };
  try {
    make(bootstrap, root);
  } catch (const Error& error) {
    fail(error);
    if (error.code() != ErrorCode::kPeerFailed) throw;
    // An error that ends groups in general, such as a dead host, does not name this group.
    throw Error(titled(error, title, error.rank()));
  } catch (const std::exception& error) {
    fail(aborted_by(error, options.rank));
    throw;
  }
}

}  // namespace q7x2
