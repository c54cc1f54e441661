// Life and death of a group.
#include "transport/group/group.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <utility>

#include "base/log.h"
#include "transport/bootstrap/gather_tree.h"
#include "transport/group/group_facts.h"
#include "transport/group/group_failure.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

std::shared_ptr<Group> Group::create(Runtime& runtime, int rank, int world_size,
                                     const std::string& name, const Exchange& exchange,
                                     const Await& await, bool eager, const std::string& algorithms,
                                     DevicePath device_path) {
  return WireUp(runtime, rank, world_size, name, exchange, await)
      .run(eager, algorithms, device_path);
}

Group::Group(Runtime& runtime, int slot, Membership members, TimePoint begun)
    : runtime_(runtime),
      slot_(slot),
      members_(std::move(members)),
      device_path_(device_path_of(members_.peer_infos())),
      begun_(begun),
      departed_(static_cast<size_t>(world_size())),
      last_calls_(static_cast<size_t>(world_size())),
      wires_(static_cast<size_t>(world_size()), Wire::kShared),
      memory_refusals_(static_cast<size_t>(world_size())) {}

Group::~Group() {
  leave();
  const Locked locked(runtime_.lock());
  matcher_.reset();  // keys of peers' memory are the worker's
}

void Group::open() {
  {
    Locked locked(runtime_.lock());
    runtime_.groups().open(locked, slot_, *this);
    watch_neighbours(locked);
    for (int r = 0; r < world_size(); ++r) {
      if (r != rank() && members_.peer(r).life.is_dead()) {
        peer_died(locked, members_.peer(r));  // since the peer infos were written
      }
    }
    if (runtime_.queue().is_blocked()) lose_host(locked, runtime_.queue().error());
  }
  runtime_.parking().wake_driver();
}

// Every rank has a parent in the tree, or children. So whatever rank dies, somebody notices, also
// if nobody has talked to it.
void Group::watch_neighbours(Locked& locked) {
  std::vector<int> ranks = children_of(rank(), world_size(), kTreeBranches);
  if (rank() > 0) ranks.push_back((rank() - 1) / kTreeBranches);
  for (const int r : ranks) runtime_.peers().watch(locked, members_.peer(r));
}

void Group::set_job_ranks(std::vector<uint64_t> job_ranks) {
  const Locked locked(runtime_.lock());
  job_ranks_ = std::move(job_ranks);
}

void Group::add_job_members(Locked&, std::unordered_map<uint64_t, Peer*>& members) const {
  for (int r = 0; job_ranks_ && r < world_size(); ++r) {
    const auto index = static_cast<size_t>(r);
    if (r != rank()) {
      members.emplace(job_ranks_->empty() ? index : (*job_ranks_)[index], &members_.peer(r));
    }
  }
}

Peer* Group::failed_member(Locked&) const {
  const bool names_one = error_ && error_->code() == ErrorCode::kPeerFailed &&
                         error_->rank() >= 0 && error_->rank() < world_size() &&
                         error_->rank() != rank();
  return names_one ? &members_.peer(error_->rank()) : nullptr;
}

void Group::record(const std::vector<uint64_t>& job_ranks) {
  Locked locked(runtime_.lock());
  flight_ = runtime_.flights().open(locked, members_, job_ranks);
}

void Group::accompany(const std::shared_ptr<Group>& other) {
  const Locked locked(runtime_.lock());
  companion_ = other;
}

// ---------------------------------------------------------------------------------- connections

bool Group::connect(Locked& locked, int rank) {
  Peer& peer = members_.peer(rank);
  const bool fresh = !peer.shared.is_open();
  if (!runtime_.peers().connect(locked, peer)) {
    return false;
  }
  if (fresh) {
    greet(locked, rank);
    if (logs(Level::kDebug)) {
      log_transports(*this, rank, peer.shared.endpoint().transports());
    }
  }
  return true;
}

void Group::greet(Locked& locked, int rank) {
  runtime_.controls().send(locked, members_.peer(rank), control_to(rank, ControlType::kHello));
}

void Group::connect_all() {
  Locked locked(runtime_.lock());
  // Each rank starts with its successor, so that no rank is called by all at once.
  for (int step = 1; step < world_size(); ++step) {
    connect(locked, (rank() + step) % world_size());
  }
}

std::vector<std::string> Group::transports(int rank) {
  if (rank < 0 || rank >= world_size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(world_size()));
  }
  const Locked locked(runtime_.lock());
  const bool is_open = rank != this->rank() && members_.peer(rank).shared.is_open();
  return is_open ? members_.peer(rank).shared.endpoint().transports() : std::vector<std::string>();
}

void Group::use_private_link(int rank) {
  const Locked locked(runtime_.lock());
  Peer& peer = members_.peer(rank);
  if (!peer.rail.exists()) {
    throw Error(ErrorCode::kInternal, "there is no private link to " + describe(rank));
  }
  peer.relies_on_rail = true;
  wires_[static_cast<size_t>(rank)] = Wire::kPrivate;
}

// ---------------------------------------------------------------------------------------- tasks

std::vector<std::shared_ptr<Task>> Group::tasks() {
  Locked locked(runtime_.lock());
  const auto& active = runtime_.tasks().active(locked);
  std::vector<std::shared_ptr<Task>> mine;
  std::copy_if(active.begin(), active.end(), std::back_inserter(mine),
               [this](const auto& task) { return &task->group() == this; });
  return mine;
}

std::vector<std::shared_ptr<Task>> Group::collectives() {
  std::vector<std::shared_ptr<Task>> mine = tasks();
  std::erase_if(mine, [](const auto& task) { return task->done() || !task->takes_turn(); });
  return mine;
}

void Group::fail_tasks(Locked& locked, const Error& error) {
  waiting_.clear();
  std::vector<std::shared_ptr<Task>> mine;
  for (const auto& task : runtime_.tasks().active(locked)) {
    if (&task->group() == this && !task->is_over(locked)) {
      mine.push_back(task);
    }
  }
  for (const auto& task : mine) {
    task->fail(locked, Error(error.code(), task->name() + ": " + error.what(), error.rank()));
  }
}

void Group::request_failed(Locked& locked, Task& task, int rank, Wire wire, ucs_status_t status) {
  if (wire == Wire::kPrivate && !members_.peer(rank).relies_on_rail) {
    task.fail(locked,
              Error(ErrorCode::kTransport, task.name() + ": the private link to " + describe(rank) +
                                               " does not work: " + ucs_status_string(status)));
  } else if (rank >= 0 && has_left(rank)) {
    task.stranded(locked, left_error(rank, task));
  } else if (rank >= 0) {
    runtime_.peers().suspect(locked, members_.peer(rank), ucs_status_string(status));
  } else {
    task.fail(locked, Error(ErrorCode::kTransport,
                            task.name() + ": UCX reported " + ucs_status_string(status)));
  }
}

// What they had sent was received before their connections were closed.
bool Group::waits_for_the_dead(Locked& locked, Task& task) const {
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer < 0) return false;
    const Peer& peer = members_.peer(p->peer);
    if (!peer.life.has_ended() || !peer.life.is_dead()) return false;
  }
  return true;
}

// Of a receive from any rank nobody knows who sends.
void Group::cut_off(Locked& locked, Task& task) {
  std::set<int> ranks;
  for (const PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->peer >= 0) {
      ranks.insert(p->peer);
    } else {
      for (int r = 0; r < world_size(); ++r) {
        if (r != rank()) ranks.insert(r);
      }
    }
  }
  bool are_all_dead = true;
  for (const int r : ranks) {
    are_all_dead = are_all_dead && members_.peer(r).life.is_dead();
    runtime_.peers().cut_off(locked, members_.peer(r),
                             "it did not let go of the memory of a call that had ended");
  }
  // UCX keeps some receives for ever whose message had begun to arrive over a connection that
  // broke. All connections are closed, so nothing can write to their memory any more.
  if (are_all_dead) {
    task.record(locked).over_since = TimePoint::min();
    task.settle(locked);
  }
}

// ------------------------------------------------------------------------------------- failures

std::optional<Error> Group::error() {
  const Locked locked(runtime_.lock());
  return error_;
}

void Group::check() {
  if (const std::optional<Error> failure = error()) {
    throw Error(*failure);
  }
}

void Group::abort(const Error& error) {
  Locked locked(runtime_.lock());
  fail(locked, error);
  runtime_.tasks().drain(locked);
}

void Group::fail(Locked& locked, const Error& error) {
  if (closed_ || error_) {
    return;
  }
  error_ = error;
  runtime_.flights().failed(locked, flight_, error);
  log(Level::kInfo,
      "group '" + name() + "' has failed on rank " + std::to_string(rank()) + ": " + error.what());
  fail_tasks(locked, error);
  spread(locked, error);
  if (std::shared_ptr<Group> other = companion_.lock()) {
    other->fail(locked, error);
    locked.drop_later(std::move(other));
  }
}

// See group_failure.h: each rank that hears of it comes here, too.
void Group::spread(Locked& locked, const Error& error) {
  std::vector<int> ranks = neighbours(rank(), world_size());
  for (int r = 0; r < world_size(); ++r) {
    if (r != rank() && members_.peer(r).shared.is_open()) ranks.push_back(r);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const int r : ranks) {
    if (!has_left(r) && members_.peer(r).life.is_alive() && connect(locked, r)) {
      tell(locked, r, error);
    }
  }
}

void Group::tell(Locked& locked, int rank, const Error& error) {
  Control control = control_to(rank, ControlType::kAbort);
  control.code = error.code();
  control.subject = error.rank();
  control.text = error.what();
  runtime_.controls().send(locked, members_.peer(rank), control);
}

// All that a rank sent before it failed arrives before it says so. Where nobody receives it, its
// sender's calls would never be done.
void Group::drop_mail(Locked& locked) {
  runtime_.reactor().drop_unexpected(locked, tag::slot_bits(slot_), tag::kSlotMask);
}

Error Group::failure_of(const std::exception& exception) const {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) {
    return *error;
  }
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {ErrorCode::kTransport,
          describe(rank()) + " could not go on: " +
              (no_memory ? "it could not allocate memory" : exception.what()),
          rank()};
}

void Group::peer_died(Locked& locked, const Peer& peer) {
  const int rank = members_.rank_of(peer);
  if (rank < 0 || has_left(rank)) {
    return;
  }
  if (matcher_) progress_shared(locked);  // what it wrote before
  if (peer.life.is_lost_by(Evidence::kLate)) {
    fail(locked, Error(ErrorCode::kTimeout,
                       describe(rank) + " is late: " + peer.life.reason() +
                           ", so the connection to it was closed",
                       rank));
    return;
  }
  // Of a path that is blocked, either end may be the one that says so: both are named.
  const std::string here = describe(this->rank());
  std::string reason = peer.life.reason();
  if (peer.life.is_lost_by(Evidence::kPathFromBlocked)) {
    reason =
        "the path for data from it to " + here + " is blocked (firewall or MTU?), its host answers";
  } else if (peer.life.is_lost_by(Evidence::kPathToBlocked)) {
    reason += ", seen from " + here;
  }
  fail(locked, Error(ErrorCode::kPeerFailed, describe(rank) + " failed: " + reason, rank));
}

// -------------------------------------------------------------------------------- what peers say

Control Group::control_to(int rank, ControlType type) const {
  Control control;
  control.type = type;
  control.slot = peer_info(rank).slot;
  control.sender_slot = static_cast<uint16_t>(slot_);
  control.sender = this->rank();
  control.receiver = rank;
  return control;
}

void Group::handle(Locked& locked, const Control& control) {
  // Only a member may speak for itself, and not this rank.
  if (control.sender < 0 || control.sender >= world_size() || control.sender == rank() ||
      control.receiver != rank() || peer_info(control.sender).process != control.process) {
    return;
  }
  switch (control.type) {
    case ControlType::kHello:
      if (!closed_ && !error_) {
        connect(locked, control.sender);
      }
      return;
    case ControlType::kGoodbye:
      hear_goodbye(locked, control);
      return;
    case ControlType::kLastCall:
      last_calls_[static_cast<size_t>(control.sender)] = control.sequence;
      return;
    case ControlType::kAbort:
      if (matcher_) progress_shared(locked);  // what others wrote before
      fail(locked, Error(control.code, control.text,
                         control.subject < world_size() ? control.subject : -1));
      drop_mail(locked);
      return;
    case ControlType::kInquiry:
      answer(locked, control);
      return;
    case ControlType::kAnswer:
      hear_answer(locked, control);
      return;
  }
}

}  // namespace q7x2
