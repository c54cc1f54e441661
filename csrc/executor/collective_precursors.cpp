// What precedes a call: the announcement of rank 0's choice, reviews of the choice, looks at rates,
// sums of counts.
#include <cstring>
#include <span>
#include <utility>

#include "base/thread_turns.h"
#include "executor/collective.h"
#include "executor/group_connections.h"

namespace q7x2 {
namespace {

/// Planning takes as long as a job on so much memory: too long for who holds the lock.
constexpr size_t kPlanningBytes = size_t{16} << 20;

}  // namespace

// The call is submitted all the same, so that its group fails with it.
std::shared_ptr<Task> CollectiveTask::precursor(Locked& locked) {
  if (!call_of_precursor_.expired()) return precursor_;  // it is one itself
  number_ = page_->calls();
  page_->count();
  if (attempt_) return attempt_->grant();
  if (counting_) return counting_;
  try {
    if (served_) return served_->vote(locked, *this, static_cast<uint32_t>(fingerprint_), book_);
    switch (page_->precursor_of(number_)) {
      case PlanBook::Page::Precursor::kNone:
        break;
      case PlanBook::Page::Precursor::kAnnouncement:
        precursor_ = announcement();
        break;
      case PlanBook::Page::Precursor::kReview:
        precursor_ = review();
        break;
      case PlanBook::Page::Precursor::kLook:
        precursor_ = look(Look::kChoice);
        precursor_->precursor_ = look(Look::kRates);
        break;
    }
  } catch (...) {
    no_precursor_ = std::current_exception();
  }
  return precursor_;
}

std::shared_ptr<CollectiveTask> CollectiveTask::announcement() {
  CollectiveCall call;
  call.collective = Collective::kBroadcast;
  call.root = 0;
  const auto task = before_this(std::move(call), Publication::kBytes, book_->courier());
  if (page_->is_settled()) book_->publish(*page_, task->memory());
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::review() {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kInt64;
  call.reduce = ReduceKind::kMax;
  const auto task = before_this(std::move(call), sizeof(Refinement::Figures), book_->reviewer());
  task->reviewed_ = page_;
  return task;
}

// Two of them precede a call: if the first one finds that rates have changed, the second one brings
// the choice for them. So the call is made by it already.
std::shared_ptr<CollectiveTask> CollectiveTask::look(Look look) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kInt32;
  const auto task = before_this(std::move(call), page_->reacting().bytes(), book_->looker());
  task->looked_at_ = page_;
  task->look_ = look;
  task->number_of_call_ = number_;
  return task;
}

std::shared_ptr<CollectiveTask> CollectiveTask::sum_of_counts(
    std::shared_ptr<PlanBook::Page> page) const {
  const std::span counts = std::as_writable_bytes(std::span(*counts_));
  PlannedCall sum{.call = {}, .book = book_, .page = std::move(page), .counting = {}};
  sum.call.collective = Collective::kAllReduce;
  sum.call.input = sum.call.output = {{counts.data(), counts.size()}};
  sum.call.dtype = DType::kInt32;
  sum.call.title = "counts of a balanced all_reduce";
  return std::make_shared<CollectiveTask>(group_pointer(), std::move(sum), counts_, timeout());
}

std::shared_ptr<CollectiveTask> CollectiveTask::before_this(CollectiveCall call, size_t bytes,
                                                            std::shared_ptr<PlanBook::Page> page) {
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  call.input = call.output = {{memory->data(), memory->size()}};
  call.agreed = static_cast<uint32_t>(fingerprint_);
  PlannedCall planned{
      .call = std::move(call), .book = book_, .page = std::move(page), .counting = {}};
  const auto task =
      std::make_shared<CollectiveTask>(group_pointer(), std::move(planned), memory, timeout());
  task->call_of_precursor_ = weak_from_this();
  return task;
}

void CollectiveTask::take_news() {
  const std::span<const std::byte> news = precursor_->memory();
  if (precursor_->looked_at_) {
    PlanBook::Page& page = *precursor_->looked_at_;
    if (page.look() == precursor_->look_) {
      book_->take_look(page, precursor_->number_of_call_, news);
    }
  } else if (!precursor_->reviewed_) {
    book_->settle(*page_, news);
  } else if (page_->refinement().is_active()) {
    Refinement::Figures slowest;
    std::memcpy(slowest.data(), news.data(), sizeof(slowest));
    page_->review(number_, slowest);
  }
  precursor_.reset();
}

bool CollectiveTask::is_idle() const {
  return (reviewed_ && !reviewed_->refinement().is_active()) ||
         (looked_at_ && looked_at_->look() != look_);
}

void CollectiveTask::contribute(Locked& locked) {
  if (reviewed_) {
    const Refinement::Figures figures = reviewed_->refinement().figures();
    std::memcpy(memory().data(), figures.data(), sizeof(figures));
  } else if (looked_at_ && look_ == Look::kRates) {
    looked_at_->reacting().write(memory(),
                                 {group_connections(locked, group(), book_->fabric()->host_of),
                                  book_->reductions().take(), turns_of_this_thread()});
  } else if (looked_at_ && group().rank() == 0) {
    planning_ = std::make_unique<PlanningJob>(*this);
    enqueue(locked, *planning_, kPlanningBytes);
  }
}

}  // namespace q7x2
