#include "transport/run/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "ledger/flight_archive.h"
#include "transport/group/group.h"
#include "transport/quirks/forked_ucx.h"
#include "transport/run/runtimes.h"

namespace q7x2 {
namespace {

void submit_after_prerequisites(Locked& locked, TaskTable& tasks,
                                const std::shared_ptr<Task>& task) {
  if (const std::shared_ptr<Task> first = task->prerequisite(locked)) {
    submit_after_prerequisites(locked, tasks, first);
  }
  tasks.submit(locked, task);
}

using std::chrono::milliseconds;

constexpr milliseconds kShutdownPatience{
    1000};  // at the end of the process, for tasks that are no collectives
// How long `close` waits without progress for peers to receive what was sent to them; and how long
// if one of them was late.
constexpr milliseconds kClosePatience{1000};
constexpr milliseconds kClosePatienceForLate{10};
// At the end of the process: how long to wait for callbacks to return, and for threads that are
// leaving a call to reach the host program before it ends. A callback that was stuck until now may
// be returning because another rank gives up at the same time.
constexpr milliseconds kCallbackPatience{5000};
constexpr milliseconds kWayOut{50};
constexpr milliseconds kWayOutOfCallback{500};
// How long to wait for the records of a runtime that is ending. It holds its lock for less.
constexpr milliseconds kRecordsPatience{200};

std::mutex instance_mutex;
std::vector<std::weak_ptr<Runtime>> instances_;  // the newest is last
Runtime::Hooks hooks_;

/// The addresses at which other hosts may connect.
std::vector<IpAddress> addresses_of(const NicRoles& nics) {
  std::vector<IpAddress> addresses{nics.address};
  for (const Nic& nic : nics.rails) addresses.push_back(IpAddress::v4(nic.address));
  return addresses;
}

std::atomic<int> dying_runtimes{0};  // runtimes that detached threads are destroying
std::atomic<size_t> unrecorded{0};   // runtimes that have not yet left their records

/// Keeps the records, so that they can be read after the runtime is gone.
void leave_records(Runtime& runtime) {
  if (runtime.flights().capacity() == 0) return;
  try {
    FlightSnapshot records = runtime.flight_snapshot("the last group has ended");
    FlightBatch counters;
    {
      Locked locked(runtime.lock());
      counters = runtime.flights().counters(locked, /*reset=*/false);
    }
    FlightArchive::of_process().keep(counters, std::move(records));
  } catch (const std::bad_alloc&) {
    log(Level::kWarn, "there is no memory for the last counters and records");
  }
}

}  // namespace

std::shared_ptr<Runtime> Runtime::instance() {
  // A fork may copy a mutex that another thread holds, and it does not copy the threads.
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    new (&instance_mutex) std::mutex;
    dying_runtimes = 0;
    unrecorded = 0;
    FlightArchive::begin_again();
    if (!std::ranges::all_of(instances_, &std::weak_ptr<Runtime>::expired)) note_forked_ucx();
  });
  if (registered != 0) {
    throw Error(ErrorCode::kTransport, std::string("pthread_atfork: ") + std::strerror(registered));
  }
  const std::lock_guard<std::mutex> lock(instance_mutex);
  std::vector<std::shared_ptr<Runtime>> runtimes = living();
  if (runtimes.empty() || !runtimes.back()->is_usable()) {
    runtimes.push_back(make());
    instances_.assign(runtimes.begin(), runtimes.end());
  }
  return runtimes.back();
}

std::shared_ptr<Runtime> Runtime::make() {
  check_log_setting();
  try {
    std::shared_ptr<Runtime> made(new Runtime(FlightSettings::of_environment()), destroy);
    ++unrecorded;
    return made;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kTransport,
                "q7x2 could not start, because it could not allocate memory: raise the limit of "
                "address space (`ulimit -v`)");
  }
}

std::vector<std::shared_ptr<Runtime>> Runtime::living() {
  std::vector<std::shared_ptr<Runtime>> runtimes;
  for (const auto& each : instances_) {
    if (std::shared_ptr<Runtime> runtime = each.lock()) runtimes.push_back(std::move(runtime));
  }
  return runtimes;
}

std::shared_ptr<Runtime> Runtime::existing() {
  const std::lock_guard<std::mutex> lock(instance_mutex);
  const std::vector<std::shared_ptr<Runtime>> runtimes = living();
  return runtimes.empty() || runtimes.back()->forked() ? nullptr : runtimes.back();
}

std::vector<std::shared_ptr<Runtime>> all_runtimes() {
  // A runtime that has no user any more is about to leave its records.
  const TimePoint until = Clock::now() + kRecordsPatience;
  for (;;) {
    std::vector<std::shared_ptr<Runtime>> runtimes;
    {
      const std::lock_guard<std::mutex> lock(instance_mutex);
      for (const auto& each : instances_) {
        if (std::shared_ptr<Runtime> runtime = each.lock()) runtimes.push_back(std::move(runtime));
      }
    }
    std::erase_if(runtimes, [](const auto& each) { return each->forked(); });
    if (runtimes.size() >= unrecorded || Clock::now() >= until) return runtimes;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void Runtime::destroy(Runtime* runtime) {
  if (runtime->forked()) {
    return;  // the threads, and the other end of every connection, belong to the parent
  }
  if (runtime->driver_.is_current_thread() || runtime->notifier_.is_current_thread()) {
    // A thread cannot join itself.
    ++dying_runtimes;
    std::thread([runtime] {
      leave_records(*runtime);
      --unrecorded;
      delete runtime;
      --dying_runtimes;
    }).detach();
  } else {
    run_unlocked([runtime] {
      leave_records(*runtime);
      --unrecorded;
      delete runtime;
    });
  }
}

void Runtime::set_hooks(Hooks hooks) {
  hooks_ = std::move(hooks);
}

void Runtime::check_interrupt() {
  if (hooks_.check_interrupt) {
    hooks_.check_interrupt();
  }
}

void Runtime::run_unlocked(const std::function<void()>& body) {
  if (hooks_.run_unlocked) {
    hooks_.run_unlocked(body);
  } else {
    body();
  }
}

void Runtime::shutdown_instance(bool others_run) {
  std::vector<std::shared_ptr<Runtime>> runtimes;
  {
    const std::lock_guard<std::mutex> lock(instance_mutex);
    runtimes = living();
  }
  const size_t of_parent = std::erase_if(runtimes, [](const auto& each) { return each->forked(); });
  if (of_parent > 0 && runtimes.empty()) {
    return;
  }
  const TimePoint now = Clock::now();
  const TimePoint callbacks_until = now + kCallbackPatience;
  while (dying_runtimes > 0 && Clock::now() < callbacks_until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  for (const auto& runtime : runtimes) {
    runtime->finish_collectives(nullptr);
  }
  const bool callbacks_rest = std::ranges::all_of(runtimes, [&](const auto& runtime) {
    return runtime->rest(now + kShutdownPatience, callbacks_until);
  });
  begin_ending();
  if (others_run || !callbacks_rest) {
    std::this_thread::sleep_for(callbacks_rest ? kWayOut : kWayOutOfCallback);
  }
  for (const std::shared_ptr<Runtime>& runtime : runtimes) {
    // Nobody waits for later failures: their callbacks are dropped.
    if (!runtime->notifier_.stop(Clock::now())) {
      new std::shared_ptr<Runtime>(
          runtime);  // keeps it alive, because a callback that did not return still uses it
    }
    runtime->groups_.leave_all();
    runtime->stop();
  }
}

Runtime::Runtime(const FlightSettings& flights)
    : secret_(JobSecret::of_environment()),
      identity_(random_identity()),
      flights_(flights, identity_.process),
      nics_(nic_roles()),
      reactor_(nics_.shared),
      queue_(reactor_),
      envelopes_(secret_, identity_),
      peers_(secret_, identity_, addresses_of(nics_), Advertised::of_environment(), reactor_,
             [this](Locked& locked, Peer& peer) {
               tasks_.drain(locked);
               groups_.peer_died(locked, peer);
               tasks_.drain(locked);
               if (peer.same_host) {
                 queue_.process_died(locked, Clock::now(), describe_process(peer.info));
               }
             }),
      controls_(reactor_, envelopes_),
      groups_(reactor_, peers_, controls_),
      bootstraps_(identity_.process, reactor_, peers_, envelopes_),
      tasks_(reactor_, flights_),
      parking_(tasks_.unfinished()),
      jobs_(reactor_.lock(), tasks_, parking_),
      completions_(std::make_shared<CompletionQueue>(parking_)),
      driver_(reactor_, queue_, peers_, groups_, bootstraps_, tasks_, jobs_, *completions_,
              parking_) {
  lock().cover(
      {&reactor_, &peers_, &controls_, &groups_, &tasks_, &flights_, &services_, &services_});
  if (!flights.directory.empty()) {
    dumps_ = std::make_unique<DumpWriter>(flights.directory, [this](std::string reason) {
      return flight_snapshot(std::move(reason));
    });
    Locked locked(lock());
    flights_.write_to(locked, dumps_.get());
  }
  notifier_.start();
  driver_.start();
}

Runtime::~Runtime() {
  stop();
  // Requests that never completed in UCX still refer to groups, and the groups refer to this.
  {
    Locked locked(lock());
    tasks_.clear(locked);
  }
  leave_records(*this);  // includes what has happened during the stop
}

void Runtime::stop() {
  if (!driver_.stop()) {
    return;
  }
  jobs_.stop();
  completions_->close();
  notifier_.stop();
  {
    Locked locked(lock());
    flights_.write_to(locked, nullptr);
  }
  dumps_.reset();
  Locked locked(lock());
  peers_.close(locked, groups_.ended_late(locked) ? kClosePatienceForLate : kClosePatience);
  reactor_.drop_unexpected(locked, 0, 0);
  tasks_.drain(locked);
  flights_.end_feed(locked);
}

std::vector<std::shared_ptr<Task>> Runtime::tasks_of(const Group& group) {
  Locked locked(lock());
  std::vector<std::shared_ptr<Task>> found;
  std::ranges::copy_if(tasks_.active(locked), std::back_inserter(found),
                       [&](const auto& task) { return &task->group() == &group; });
  return found;
}

void Runtime::record(const Group& group, const std::vector<uint64_t>& job_ranks) {
  Locked locked(lock());
  flights_.open(locked, group.slot(), group.membership(), job_ranks);
}

FlightSnapshot Runtime::flight_snapshot(std::string reason) {
  using std::chrono::nanoseconds;
  FlightSnapshot snapshot;
  snapshot.reason = std::move(reason);
  snapshot.records.reserve(flights_.capacity());
  Locked locked(lock());
  snapshot.steady_now = nanoseconds(Clock::now().time_since_epoch()).count();
  snapshot.wall_now = nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  flights_.copy_to(locked, tasks_.active(locked), snapshot);
  return snapshot;
}

void Runtime::enter() const {
  home_.require("a q7x2 group");
  block_at_exit();
}

std::vector<std::string> Runtime::take_warnings() {
  Locked locked(lock());
  return reactor_.take_warnings(locked);
}

void Runtime::submit(const std::shared_ptr<Task>& task, bool caller_waits) {
  enter();
  parking_.note_activity();
  // The caller runs the jobs then: another thread that wakes up for them would only disturb it.
  std::optional<Group::Waiting> waiting;
  if (caller_waits) waiting.emplace(task->group());
  {
    Locked locked(lock());
    submit_after_prerequisites(locked, tasks_, task);
    tasks_.drain(locked);
  }
  while (jobs_.run_small_of(*task)) {
  }
  if (!caller_waits && !task->done()) wake();
}

void Runtime::wake() {
  parking_.wake_driver();
  parking_
      .wake_waiters();  // a sleeping waiter does not know about the shared memory of the group yet
}

bool Runtime::wait(const Task& task, TimePoint deadline, size_t bytes) {
  enter();
  const StayIfEnding stay;
  return driver_.wait(task, deadline, bytes, check_interrupt);
}

void Runtime::drive() {
  Locked locked(lock());
  driver_.drive(locked);
}

}  // namespace q7x2
