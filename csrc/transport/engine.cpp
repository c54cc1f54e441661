#include "transport/engine.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "base/quiet_thread.h"
#include "transport/group.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kControlId = 0;
constexpr unsigned kWakeId = 1;
// A dead peer's last messages may still be on their way to be read.
constexpr int kLastLooks = 10000;
constexpr milliseconds kHousekeepingPeriod{5};
// Threads that sleep look around this often: for interrupts and deadlines.
constexpr milliseconds kNap{50};
// While others drive the engine, its thread looks this often whether it is needed.
constexpr milliseconds kStandBy{10};
constexpr milliseconds kShutdownPatience{1000};
// At the end of the process: for callbacks to return, and for threads that are on their way out of
// a call to arrive in the host program before it goes.
constexpr milliseconds kCallbackPatience{5000};
constexpr milliseconds kWayOut{50};

std::mutex instance_mutex;
std::weak_ptr<Engine> instance_;
Engine::Hooks hooks_;

std::atomic<int> dying_engines{0};  // being destroyed by threads that nobody joins

uint64_t random_identity() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

milliseconds nap_until(TimePoint deadline, TimePoint now, milliseconds at_most) {
  return std::clamp(std::chrono::ceil<milliseconds>(deadline - now), milliseconds::zero(), at_most);
}

}  // namespace

std::shared_ptr<Engine> Engine::instance() {
  // A fork may copy a mutex that another thread holds, and it copies no threads.
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    new (&instance_mutex) std::mutex;
    dying_engines = 0;
  });
  if (registered != 0) {
    throw Error(ErrorCode::kTransport, std::string("pthread_atfork: ") + std::strerror(registered));
  }
  const std::lock_guard<std::mutex> lock(instance_mutex);
  std::shared_ptr<Engine> engine = instance_.lock();
  if (engine && !engine->forked() && !engine->stop_) {
    return engine;
  }
  engine.reset(new Engine(), [](Engine* e) {
    const auto self = std::this_thread::get_id();
    if (e->forked()) {
      return;  // the threads, and the other end of every connection, belong to the parent
    }
    if (self == e->thread_.get_id() || e->notifier_.is_current_thread()) {
      // A thread cannot join itself.
      ++dying_engines;
      std::thread([e] {
        delete e;
        --dying_engines;
      }).detach();
    } else if (hooks_.run_unlocked) {
      hooks_.run_unlocked([e] { delete e; });
    } else {
      delete e;
    }
  });
  instance_ = engine;
  return engine;
}

void Engine::set_hooks(Hooks hooks) {
  hooks_ = std::move(hooks);
}

void Engine::check_interrupt() {
  if (hooks_.check_interrupt) {
    hooks_.check_interrupt();
  }
}

void Engine::shutdown_instance(bool others_run) {
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard<std::mutex> lock(instance_mutex);
    engine = instance_.lock();
  }
  if (engine && engine->forked()) {
    return;
  }
  const TimePoint now = Clock::now();
  const TimePoint callbacks_until = now + kCallbackPatience;
  while (dying_engines > 0 && Clock::now() < callbacks_until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (engine) {
    engine->rest(now + kShutdownPatience, callbacks_until);
  }
  begin_ending();
  if (others_run) {
    std::this_thread::sleep_for(kWayOut);
  }
  if (!engine) {
    return;
  }
  // What fails from here on is nobody's concern: its callbacks are dropped.
  if (!engine->notifier_.stop(Clock::now())) {
    new std::shared_ptr<Engine>(engine);  // a callback that did not return still uses it
  }
  for (size_t slot = 0; slot < engine->groups_.size(); ++slot) {
    // Leaving takes the lock itself.
    if (Group* group = engine->groups_[slot]; group != nullptr) {
      group->leave();
    }
  }
  engine->stop();
}

Engine::Engine()
    : process_(random_identity()),
      nics_(nic_roles()),
      reactor_(nics_.shared),
      groups_(tag::kMaxGroups) {
  reactor_.on_message(kControlId, on_control, this);
  reactor_.on_message(kWakeId, on_wake, this);

  notifier_.start();
  thread_ = quiet_thread("q7x2-engine", [this] { run(); });
}

Engine::~Engine() {
  stop();
  {
    // What never came back from UCX still refers to groups, which refer to this.
    Locked locked(reactor_.lock());
    for (std::shared_ptr<Task>& task : active_) {
      locked.drop_later(std::move(task));
    }
    active_.clear();
  }
}

void Engine::stop() {
  if (stop_.exchange(true)) {
    return;
  }
  parking_.stop_driver();
  thread_.join();
  notifier_.stop();
  Locked locked(reactor_.lock());
  peers_.close(locked);
  reactor_.drop_unexpected(locked, 0, 0);
  drain(locked);
}

// Waits until nothing is unfinished and no callback runs.
void Engine::rest(TimePoint tasks_until, TimePoint callbacks_until) {
  for (;;) {
    const TimePoint now = Clock::now();
    const bool tasks_rest = unfinished_ == 0 || now >= tasks_until;
    const bool callbacks_rest = !notifier_.is_busy() || now >= callbacks_until;
    if (tasks_rest && callbacks_rest) {
      return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void Engine::enter() const {
  home_.require("a q7x2 group");
  stay_if_ending();
}

std::vector<std::string> Engine::take_warnings() {
  Locked locked(reactor_.lock());
  return reactor_.take_warnings(locked);
}

// ---------------------------------------------------------------------------------------- tasks

void Engine::submit(const std::shared_ptr<Task>& task, bool caller_waits) {
  enter();
  parking_.note_activity();
  {
    Locked locked(reactor_.lock());
    const auto admit = [&](const std::shared_ptr<Task>& each) {
      each->set_submitted(locked, Clock::now());
      guarded(locked, *each, [&] {
        activate(locked, each);
        each->group().submit(locked, each);
      });
    };
    if (const std::shared_ptr<Task> first = task->precursor()) {
      admit(first);
    }
    admit(task);
    drain(locked);
  }
  if (!caller_waits && !task->done()) {
    parking_.wake_driver();
    parking_.wake_waiters();  // one that sleeps was not told of this group's shared memory
  }
}

template <typename Step>
void Engine::guarded(Locked& locked, Task& task, const Step& step) {
  try {
    step();
  } catch (const std::exception& exception) {
    const Error error = task.group().failure_of(exception);
    task.fail(locked, Error(error.code(), task.name() + ": " + error.what(), error.rank()));
    task.group().fail(locked, error);
  }
}

// What a message could not do here, its group must know: the sender counts on it.
void Engine::handle_guarded(Locked& locked, const Control& control) {
  try {
    handle(locked, control);
  } catch (const std::exception& exception) {
    Group* group = control.slot < groups_.size() ? groups_[control.slot] : nullptr;
    if (group != nullptr) group->fail(locked, group->failure_of(exception));
  }
}

void Engine::activate(Locked& locked, const std::shared_ptr<Task>& task) {
  active_.push_back(task);
  task->record(locked).active_index = active_.size() - 1;
  ++unfinished_;
}

void Engine::retire(Locked& locked, Task& task) {
  const std::optional<size_t> at = std::exchange(task.record(locked).active_index, std::nullopt);
  if (!at) {
    return;
  }
  locked.drop_later(std::move(active_[*at]));
  if (*at + 1 != active_.size()) {
    active_[*at] = std::move(active_.back());
    active_[*at]->record(locked).active_index = at;
  }
  active_.pop_back();
}

void Engine::cancel_receives(Locked& locked, Task& task) {
  // Cancelling completes a request from inside the call; the reactor collects it.
  const RequestList& requests = task.record(locked).requests;
  for (PendingRequest* p = requests.first(); p != nullptr; p = p->next) {
    if (p->is_receive && p->request != nullptr) {
      reactor_.cancel(locked, *p);
    }
  }
  task.group().forget_shared(locked, task);
  if (requests.is_empty()) {
    retire(locked, task);
  }
}

void Engine::drain(Locked& locked) {
  while (PendingRequest* const complete = reactor_.take_completed(locked)) {
    const PendingRequest pending = *complete;
    Task& task = *pending.task;
    reactor_.release(locked, *complete);
    if (task.done()) {
      if (task.record(locked).requests.is_empty()) {
        retire(locked, task);
      }
      continue;
    }
    guarded(locked, task, [&] {
      if (pending.status == UCS_OK || pending.status == UCS_ERR_MESSAGE_TRUNCATED) {
        task.complete(locked, pending);
      } else if (pending.status != UCS_ERR_CANCELED) {
        task.group().request_failed(locked, task, pending.peer, pending.wire, pending.status);
      }
    });
  }
}

bool Engine::progress(Locked& locked) {
  bool any = reactor_.progress(locked);
  drain(locked);
  for (size_t i = 0; i < sharing_.size(); ++i) {
    any |= sharing_[i]->progress_shared(locked);
  }
  if (lost_control_) {
    // Nobody knows which group it was for.
    lost_control_ = false;
    for (Group* group : groups_) {
      if (group != nullptr) group->fail(locked, group->failure_of(std::bad_alloc()));
    }
  }
  if (!controls_.empty()) {
    std::vector<Control> controls;
    controls.swap(controls_);
    for (const Control& control : controls) {
      handle_guarded(locked, control);
    }
    drain(locked);
  }
  return any;
}

void Engine::housekeeping(Locked& locked, TimePoint now) {
  if (now < next_housekeeping_) {
    return;
  }
  next_housekeeping_ = now + kHousekeepingPeriod;
  peers_.bury(locked, now, [&] {
    // On a busy machine this thread may not have run since: read what there is.
    for (int i = 0; i < kLastLooks && progress(locked); ++i) {
    }
  });
  for (Group* group : groups_) {
    if (group != nullptr && group->running_ > 0) {
      group->check_leftovers(locked);
      group->inquire(locked, now);
    }
  }
  std::vector<std::shared_ptr<Task>> late;
  for (const auto& task : active_) {
    if (!task->done() && now >= task->record(locked).deadline) {
      late.push_back(task);
    }
  }
  for (const auto& task : late) {
    task->expire(locked);
  }
  drain(locked);
}

// --------------------------------------------------------------------------------------- groups

void Engine::peer_died(Locked& locked, Peer& peer) {
  drain(locked);
  for (Group* group : groups_) {
    if (group != nullptr) {
      if (const int rank = group->rank_of(peer); rank >= 0) {
        group->peer_failed(locked, rank, peer.life.reason());
      }
    }
  }
  drain(locked);
}

int Engine::register_group(Locked& locked, Group& group) {
  for (int tries = 0; tries < tag::kMaxGroups; ++tries) {
    const int slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % tag::kMaxGroups;
    if (groups_[static_cast<size_t>(slot)] == nullptr) {
      groups_[static_cast<size_t>(slot)] = &group;
      // What came late for the slot's last group.
      reactor_.drop_unexpected(locked, tag::slot_bits(slot), tag::kSlotMask);
      return slot;
    }
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      "a process can be in at most " + std::to_string(tag::kMaxGroups) + " q7x2 groups at once");
}

void Engine::update_sharing(Locked&, Group& group) {
  const bool needed =
      group.channel_ && (group.running_ > 0 || !group.waiting_.empty() || group.expects_mail());
  const auto found = std::find(sharing_.begin(), sharing_.end(), &group);
  if (needed && found == sharing_.end()) {
    sharing_.push_back(&group);
  } else if (!needed && found != sharing_.end()) {
    group.channel_->set_asleep(false);
    sharing_.erase(found);
  }
}

void Engine::group_ready(Locked& locked) {
  std::vector<Control> early;
  early.swap(early_controls_);
  for (const Control& control : early) {
    handle(locked, control);
  }
}

void Engine::unregister_group(Locked& locked, Group& group) {
  if (group.slot() < 0) {
    return;
  }
  groups_[static_cast<size_t>(group.slot())] = nullptr;
  std::erase(sharing_, &group);
  std::erase_if(early_controls_, [&](const Control& c) { return c.slot == group.slot(); });
  reactor_.drop_unexpected(locked, tag::slot_bits(group.slot()), tag::kSlotMask);
}

// -------------------------------------------------------------------------------------- control

void Engine::send_control(Locked& locked, Peer& peer, const Control& control) {
  if (peer.shared.is_open()) {
    reactor_.send_message(locked, peer.shared.endpoint(), kControlId, control.encode());
  }
}

void Engine::send_wake(Locked& locked, Peer& peer) {
  reactor_.send_message(locked, peer.shared.endpoint(), kWakeId, {});
}

// That it came is all: whoever slept looks at the shared memory next.
ucs_status_t Engine::on_wake(void*, const void*, size_t, void*, size_t,
                             const ucp_am_recv_param_t*) {
  return UCS_OK;
}

ucs_status_t Engine::on_control(void* arg, const void* header, size_t header_length, void*, size_t,
                                const ucp_am_recv_param_t*) {
  auto& engine = *static_cast<Engine*>(arg);
  try {
    if (auto control = Control::decode(header, header_length)) {
      engine.controls_.push_back(std::move(*control));
    }
  } catch (const std::bad_alloc&) {
    engine.lost_control_ = true;
  }
  return UCS_OK;
}

void Engine::handle(Locked& locked, const Control& control) {
  if (control.slot >= groups_.size()) {
    return;
  }
  Group* group = groups_[control.slot];
  if (group == nullptr) {
    // The group is over here. Whoever connects to it only now is told.
    Peer* const peer = peers_.find(locked, control.process);
    if (control.type == ControlType::kHello && peer != nullptr && peer->shared.is_open()) {
      Control goodbye = control;
      goodbye.type = ControlType::kGoodbye;
      goodbye.slot = control.sender_slot;
      goodbye.sender = control.receiver;
      goodbye.receiver = control.sender;
      goodbye.process = process_;
      send_control(locked, *peer, goodbye);
    }
    return;
  }
  if (group->cards_.empty()) {
    early_controls_.push_back(control);
    return;
  }
  // Only a member may speak for itself.
  if (control.sender < 0 || control.sender >= group->world_size() ||
      group->cards_[static_cast<size_t>(control.sender)].process != control.process) {
    return;
  }
  group->handle(locked, control);
}

// -------------------------------------------------------------------------------------- waiting

bool Engine::wait(const Task& task, TimePoint deadline, size_t bytes) {
  enter();
  const StayIfEnding stay;
  const auto satisfied = [&] { return task.done() || task.ready_bytes() >= bytes; };
  if (satisfied()) {
    return true;
  }
  parking_.note_activity();
  Parking::Waiter waiter(parking_);
  TimePoint now = Clock::now();
  // What comes through shared memory wakes nobody by itself.
  WaitPolicy policy = parking_.policy(now, /*by_network=*/task.group().channel() == nullptr);
  TimePoint next_interrupt_check = now + kNap;
  while (!satisfied()) {
    stay_if_ending();
    bool armed = false;
    std::vector<pollfd> events;
    if (reactor_.lock().try_lock()) {
      Locked locked(reactor_.lock(), std::adopt_lock);
      awake(locked);
      bool any = false;
      for (int i = 0; i < policy.progress_per_look() && !satisfied(); ++i) {
        any |= progress(locked);
      }
      now = Clock::now();
      housekeeping(locked, now);
      if (any) {
        policy.saw_event(now);
      } else if (!satisfied() && policy.sleeps(now)) {
        armed = prepare_sleep(locked);
      }
      if (armed) {
        events = reactor_.events(locked);
        waiter.announce();
      }
    } else {
      now = Clock::now();
    }
    if (armed) {
      waiter.sleep(std::move(events),
                   nap_until(deadline, now, peers_.has_suspects() ? kHousekeepingPeriod : kNap));
    } else if (!satisfied() && policy.yields(parking_.is_crowded())) {
      waiter.yield(policy, now);
    }
    if (now >= deadline && !satisfied()) {
      return false;
    }
    if (now >= next_interrupt_check) {
      next_interrupt_check = now + kNap;
      stay_if_ending();
      check_interrupt();
    }
  }
  return true;
}

bool Engine::prepare_sleep(Locked& locked) {
  if (!reactor_.arm(locked)) {
    return false;
  }
  asleep_ = true;
  // First the sign, then the last look: who writes after the look sees the sign.
  for (Group* group : sharing_) {
    group->channel_->set_asleep(true);
  }
  bool any = false;
  for (size_t i = 0; i < sharing_.size(); ++i) {
    any |= sharing_[i]->progress_shared(locked);
  }
  if (any) {
    awake(locked);
  }
  return !any;
}

void Engine::awake(Locked&) {
  if (!asleep_) {
    return;
  }
  asleep_ = false;
  for (Group* group : sharing_) {
    group->channel_->set_asleep(false);
  }
}

// -------------------------------------------------------------------------------------- threads

void Engine::run() {
  uint64_t seen_activity = 0;
  TimePoint spin_until{};
  while (!stop_) {
    bool armed = false;
    std::vector<pollfd> fds;
    milliseconds nap = kStandBy;
    if (!parking_.has_waiters()) {
      Locked locked(reactor_.lock());
      awake(locked);
      bool any = false;
      for (int i = 0; i < WaitPolicy::kProgressPerLook; ++i) {
        any |= progress(locked);
      }
      const TimePoint now = Clock::now();
      housekeeping(locked, now);
      const bool busy = unfinished_ > 0;
      if (any) {
        spin_until = now + WaitPolicy::kSpinAfterEvent;
      }
      const uint64_t activity = parking_.activity();
      if (busy && now < spin_until) {
        nap = milliseconds::zero();
      } else if (busy || activity == seen_activity) {
        armed = prepare_sleep(locked);
        nap = !armed                     ? milliseconds::zero()
              : peers_.has_suspects()    ? kHousekeepingPeriod
              : busy || !active_.empty() ? kNap
                                         : milliseconds(-1);
      }
      if (armed) {
        fds = reactor_.events(locked);
      }
      seen_activity = activity;
      parking_.announce_driver(nap != milliseconds::zero());
    } else {
      parking_.announce_driver(true);
    }
    if (nap == milliseconds::zero()) {
      ::sched_yield();
      continue;
    }
    // Work that arrived since the look above is not slept on.
    if (!stop_ && (armed || parking_.has_waiters() || unfinished_ == 0)) {
      fds.push_back({parking_.driver_fd(), POLLIN, 0});
      fds.push_back({peers_.watch_fd(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), static_cast<int>(nap.count()));
    }
    parking_.driver_is_up();
    peers_.look_for_ended();
  }
}

}  // namespace q7x2
