#include "backend/store_meeting.h"

#include <thread>

#include "backend/failure_linger.h"
#include "base/error.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// A rank that fails raises its error within this time, even if the store does not answer.
constexpr std::chrono::milliseconds kTelling{30};

// Ending a runtime that no other group needs takes about 10 ms of processor time. The thread of a
// FailureLinger does it, this long after the failure, so that no rank of this host has to wait for
// the processor before it raises its error.
constexpr std::chrono::milliseconds kAfterwards{100};
constexpr std::chrono::milliseconds kNap{5};

uint64_t in_job(const StoreMeeting::Options& options, int rank) {
  const auto index = static_cast<size_t>(rank);
  return index < options.job_ranks.size() ? options.job_ranks[index] : index;
}

}  // namespace

StoreMeeting::StoreMeeting(const c10::intrusive_ptr<c10d::Store>& store, const Options& options)
    : options_(options),
      keys_(store, options.timeout),
      root_(root_of(store), options.timeout),
      monitor_(std::make_unique<PeerMemberMonitor>(options.in_job ? options.job_ranks
                                                                  : std::vector<uint64_t>())),
      bootstrap_(keys_, {.rank = options.rank,
                         .size = options.size,
                         .group = options.group,
                         .secret = JobSecret::of_environment(),
                         .timeout = options.timeout,
                         .check_interrupt = Runtime::check_interrupt,
                         .monitor = monitor_.get(),
                         .explain_missing = [this](int r) { return explain_missing(r); },
                         .waits_for = options.waits_for}) {
  keys_.set_attend([this] { bootstrap_.attend(); });
  root_.set_attend([this] { bootstrap_.attend(); });
}

void StoreMeeting::announce() {
  announcements_ =
      std::make_unique<Announcements>(root_, in_job(options_, options_.rank), options_.group);
}

std::string StoreMeeting::explain_missing(int rank) const {
  return announcements_ ? announcements_->of(in_job(options_, rank)) : "";
}

void StoreMeeting::run(const c10::intrusive_ptr<c10d::Store>& store, const Options& options,
                       const std::function<void(Bootstrap&, KeyStore&)>& make,
                       const std::function<void(const Error&)>& abort) {
  end_failure_lingers(options.group);
  const auto meeting = std::make_shared<StoreMeeting>(store, options);
  const auto fail = [&](const Error& error) {
    abort(error);
    meeting->fail(error);
    begin_failure_linger(options.group,
                         [meeting, runtime = Runtime::existing()](const auto& check) mutable {
                           meeting->stay_and_end(runtime, check);
                         });
  };
  try {
    meeting->bootstrap_.attend();
    meeting->announce();
    make(meeting->bootstrap_, meeting->root_);
  } catch (const Error& error) {
    const Error known = meeting->bootstrap_.better_known(error);
    fail(known);
    throw Error(known);
  } catch (const std::exception& error) {
    fail(aborted_by(error, options.rank));
    throw;
  }
}

void StoreMeeting::fail(const Error& error) {
  const auto until = Clock::now() + kTelling;
  keys_.set_attend([until] {
    if (Clock::now() >= until) {
      throw Error(ErrorCode::kTimeout, "the store has not answered");
    }
  });
  bootstrap_.fail(error);
  monitor_.reset();
}

void StoreMeeting::stay_and_end(std::shared_ptr<Runtime>& runtime,
                                const std::function<void()>& check) {
  const auto ends = Clock::now() + kAfterwards;
  const auto look = [&] {
    check();
    if (Clock::now() >= ends) runtime.reset();
  };
  keys_.set_attend(look);
  bootstrap_.stay(look);
  try {
    while (runtime) {
      std::this_thread::sleep_for(kNap);
      look();
    }
  } catch (const Error&) {
    return;  // the group is made again
  }
}

}  // namespace q7x2
