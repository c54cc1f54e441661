#include "backend/store_meeting.h"

#include "backend/farewell.h"
#include "base/error.h"
#include "transport/runtime.h"

namespace q7x2 {
namespace {

uint64_t in_job(const StoreMeeting::Options& options, int rank) {
  const auto index = static_cast<size_t>(rank);
  return index < options.job_ranks.size() ? options.job_ranks[index] : index;
}

}  // namespace

StoreMeeting::StoreMeeting(const c10::intrusive_ptr<c10d::Store>& store, const Options& options)
    : options_(options),
      keys_(store, options.timeout, Runtime::check_interrupt),
      root_(root_of(store), options.timeout, Runtime::check_interrupt),
      announcements_(root_, in_job(options, options.rank), options.group),
      lookout_(std::make_unique<ProcessLookout>(options.in_job ? options.job_ranks
                                                               : std::vector<uint64_t>())),
      rendezvous_(std::make_unique<Rendezvous>(
          keys_,
          Rendezvous::Options{
              .rank = options.rank,
              .size = options.size,
              .group = options.group,
              .timeout = options.timeout,
              .check_interrupt = Runtime::check_interrupt,
              .lookout = lookout_.get(),
              .explain_missing =
                  [this](int r) { return announcements_.of(in_job(options_, r)); }})) {
  keys_.set_attend([this] { rendezvous_->attend(); });
  root_.set_attend([this] { rendezvous_->attend(); });
}

void StoreMeeting::run(const c10::intrusive_ptr<c10d::Store>& store, const Options& options,
                       const std::function<void(Rendezvous&)>& make) {
  end_farewells(options.group);
  const auto meeting = std::make_shared<StoreMeeting>(store, options);
  const auto fail = [&](const Error& error) {
    meeting->fail(error);
    begin_farewell(options.group, [meeting](const auto& check) { meeting->stay(check); });
  };
  try {
    meeting->rendezvous_->attend();
    make(*meeting->rendezvous_);
  } catch (const Error& error) {
    fail(error);
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(Error(ErrorCode::kAborted, text.substr(0, text.find('\n')), options.rank));
    throw;
  }
}

void StoreMeeting::fail(const Error& error) {
  rendezvous_->fail(error);
  lookout_.reset();
}

void StoreMeeting::stay(const std::function<void()>& check) {
  keys_.set_attend(check);
  rendezvous_->stay(check);
}

}  // namespace q7x2
