#include "backend/annex_making.h"

#include <algorithm>
#include <iterator>

#include "backend/process_group.h"
#include "backend/store_meeting.h"
#include "executor/plan_call.h"
#include "transport/runtime.h"

namespace q7x2 {
namespace {

// Where ranks say what they make, servers have numbers beyond those of ranks.
constexpr uint64_t kServersInJob = uint64_t{1} << 32;

std::vector<uint64_t> in_job(const AnnexSeat& seat) {
  std::vector<uint64_t> numbers = seat.job_ranks;
  for (auto rank = static_cast<int>(numbers.size()); rank < seat.ranks; ++rank) {
    numbers.push_back(static_cast<uint64_t>(rank));
  }
  for (int server = 0; server < seat.servers; ++server) {
    numbers.push_back(kServersInJob + static_cast<uint64_t>(server));
  }
  return numbers;
}

}  // namespace

std::shared_ptr<Group> make_annex_group(
    const c10::intrusive_ptr<c10d::Store>& root, const AnnexSeat& seat,
    const std::function<void(const std::shared_ptr<Group>&)>& prepare) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("q7x2/annex/" + seat.key, root);
  const std::string name = seat.name + " with servers";
  const int size = seat.ranks + seat.servers;
  const StoreMeeting::Options how{.rank = seat.member,
                                  .size = size,
                                  .group = name,
                                  .timeout = seat.timeout,
                                  .job_ranks = in_job(seat),
                                  .in_job = false};
  std::shared_ptr<Group> group;
  StoreMeeting::run(
      store, how,
      [&](Rendezvous& rendezvous, KeyStore&) {
        group = Group::create(*Runtime::instance(), seat.member, size, name,
                              exchange_of(rendezvous), await_of(rendezvous), /*eager=*/false);
        prepare(group);
        rendezvous.finish([&] { group->check(); });
      },
      [&](const Error& error) {
        if (group) group->abort(error);
      });
  return group;
}

// Rank 0 tells the others where they meet, and at the end all agree on whether it came about. What
// goes wrong with servers does not concern the group itself.
void ProcessGroupQ7x2::meet_servers(Rendezvous& rendezvous, const ServerMeeting& invited,
                                    const Fabric& surveyed) {
  if (surveyed.servers.empty()) return;
  const auto check = [this] { group_->check(); };
  const std::string key = rendezvous.exchange("annex", invited.key, check).front();
  const std::chrono::milliseconds timeout = std::min(options_->timeout, kAnnexTimeout);
  std::shared_ptr<Annex> annex;
  std::string failure;
  try {
    const AnnexSeat seat{.member = rank_,
                         .ranks = size_,
                         .servers = static_cast<int>(surveyed.servers.size()),
                         .key = key,
                         .name = group_->name(),
                         .timeout = timeout,
                         .job_ranks = options_->global_ranks_in_group};
    make_annex_group(root_of(store_), seat, [&](const std::shared_ptr<Group>& group) {
      auto all =
          survey_annex(group, size_, rank_ == 0 ? &surveyed : nullptr, survey_options(timeout));
      auto planner = std::make_shared<Planner>(rank_, std::move(all), algorithms_of_group(),
                                               plan_files_of_environment());
      annex = std::make_shared<Annex>(group, size_, std::move(planner), environment_of_plans());
    });
  } catch (const Error& error) {
    annex.reset();
    failure = error.what();
    if (failure.empty()) failure = to_string(error.code());
  }
  for (const std::string& said : rendezvous.exchange("annex made", failure, check)) {
    if (said.empty()) continue;
    if (rank_ == 0) {
      TORCH_WARN("q7x2: the group '", group_->name(), "' goes on without servers: ", said);
    }
    if (annex) annex->group().leave();
    return;
  }
  annex_ = std::move(annex);
  group_->accompany(annex_->group_pointer());
}

std::vector<PlanBook::Record> ProcessGroupQ7x2::plan_records() const {
  enter();
  std::vector<PlanBook::Record> records = book_->records();
  if (annex_) std::ranges::move(annex_->records(), std::back_inserter(records));
  return records;
}

}  // namespace q7x2
