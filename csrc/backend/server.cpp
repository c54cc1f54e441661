#include "backend/server.h"

#include <algorithm>
#include <utility>

#include "backend/server_group_setup.h"
#include "base/error.h"
#include "base/quiet_thread.h"
#include "executor/collective/plan_call.h"
#include "kernels/cpu/reduce.h"
#include "servers/server_group.h"
#include "transport/bootstrap/peer_address.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::milliseconds kStoreTimeout{60'000};
// How long to wait until rank 0 publishes the list of servers that it has chosen.
constexpr std::chrono::milliseconds kListTimeout{10'000};

std::string in_group(const ServerMeeting& meeting) {
  return "group '" + meeting.group + "' of " + std::to_string(meeting.ranks.size()) + " ranks";
}

}  // namespace

Server::Server(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, SlotPool pool)
    : runtime_(Runtime::instance()),
      root_(root_of(store)),
      pool_(std::make_shared<SlotPool>(std::move(pool))),
      keys_(root_, kStoreTimeout, Runtime::check_interrupt),
      seat_(std::make_unique<ServerSeat>(keys_, runtime_->secret(), name,
                                         peer_info_of_process(*runtime_))) {
  reduce_isa();  // makes a wrong Q7X2_ISA an error here
  Locked locked(runtime_->lock());
  runtime_->peers().admission().expect_others(locked);
}

Server::~Server() {
  if (runtime_->forked()) return;
  try {
    leave();
  } catch (const std::exception&) {
    return;  // nobody is left to be told
  }
}

bool Server::look(std::chrono::milliseconds duration) {
  const auto until = Clock::now() + duration;
  while (true) {
    end_services(/*all=*/false);
    std::optional<std::string> meeting;
    try {
      meeting = seat_->look();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kMismatch) throw;
      store_is_gone_ = true;
      return false;
    }
    if (meeting) {
      services_.push_back(std::make_unique<Service>());
      Service& service = *services_.back();
      service.thread =
          quiet_thread("q7x2-servers", [this, &service, key = *meeting, number = seat_->number()] {
            serve(service, key, number);
            service.is_over = true;
          });
    }
    if (Clock::now() >= until) return true;
    Runtime::check_interrupt();
    std::this_thread::sleep_for(kPause);
  }
}

void Server::serve(Service& service, const std::string& key, int64_t number) {
  std::optional<ServerMeeting> meeting;
  try {
    C10dStore keys(root_, kStoreTimeout);
    const auto until = Clock::now() + kListTimeout;
    while (!(meeting = ServerSeat::list_of(keys, runtime_->secret(), key))) {
      if (Clock::now() >= until) return;  // rank 0 has ended
      std::this_thread::sleep_for(kPause);
    }
    if (std::ranges::find(meeting->servers, number, &ServerMeeting::Server::number) !=
        meeting->servers.end()) {
      meet(service, *meeting);
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    service.must_announce = true;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    tell((meeting ? in_group(*meeting) : std::string("a group")) +
         " is not served any more: " + text.substr(0, text.find('\n')));
  }
}

void Server::meet(Service& service, const ServerMeeting& meeting) {
  const auto ranks = static_cast<int>(meeting.ranks.size());
  std::shared_ptr<const Fabric> fabric;
  const auto refuse_if_leaving = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_leaving_) throw Error(ErrorCode::kAborted, "the server leaves");
  };
  const auto prepare = [&](const std::shared_ptr<Group>& made) {
    const SurveyOptions options{.warn = [this](const std::string& text) { tell(text); },
                                .torch = {},
                                .timeout = kServerGroupTimeout};
    fabric = survey_servers(made, ranks, nullptr, options);
  };
  const auto group =
      make_server_group(*runtime_, meeting, kServerGroupTimeout, refuse_if_leaving, prepare);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_leaving_) return;
    service.group = group;
  }
  tell("serves " + in_group(meeting));
  const uint64_t declined =
      follow_orders(group, ranks, std::move(fabric), environment_of_plans(), pool_);
  group->leave();
  const std::string lack =
      declined == 0 ? ""
                    : "; it had too few slots for " + std::to_string(declined) + " of its calls";
  tell(in_group(meeting) + " has ended" + lack);
}

// Joins the threads of server groups that have ended. `all`: joins all threads, after they were
// told to end.
void Server::end_services(bool all) {
  bool must_announce = false;
  for (auto it = services_.begin(); it != services_.end();) {
    Service& service = **it;
    if (!all && !service.is_over) {
      ++it;
      continue;
    }
    service.thread.join();
    must_announce = must_announce || service.must_announce;
    it = services_.erase(it);
  }
  if (must_announce && !all) {
    seat_->announce();
    tell("was given up by a group, and is now server " + std::to_string(seat_->number()));
  }
}

void Server::leave() {
  if (has_left_) return;
  has_left_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_leaving_ = true;
    for (const auto& service : services_) {
      if (service->group) service->group->leave();
    }
  }
  if (!store_is_gone_) {
    try {
      seat_->leave();
    } catch (const Error&) {
      store_is_gone_ = true;
    }
  }
  end_services(/*all=*/true);
}

void Server::tell(std::string sentence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  news_.push_back(std::move(sentence));
}

std::vector<std::string> Server::take_news() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(news_, {});
}

}  // namespace q7x2
