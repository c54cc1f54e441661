#include "plan/plan_book.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ledger/rate_history.h"
#include "plan/generators.h"
#include "plan/schedule_search.h"

namespace q7x2 {
namespace {

static_assert(Publication::kMostProposals == Refinement::kMostChoices);

constexpr size_t kMostPages = 1024;
/// Calls of one page differ in size by up to a factor of two. Up to about so many bytes a call
/// takes as long as one of no bytes at all.
constexpr double kFreeBytes = 32 * 1024;
/// A scratch block for the figures of a review.
constexpr size_t kReviewBytes = 128;
static_assert(sizeof(Refinement::Figures) <= kReviewBytes);

/// By rank alone, so that it depends on nothing that ranks could disagree about.
Choice choice_by_rank(const std::string& algorithm, Collective collective, int root, size_t bytes,
                      int rank, int world_size) {
  for (const Generator& generator : generators()) {
    if (generator.name != algorithm || generator.collective != collective) continue;
    const Schedule schedule = generator.generate({collective, world_size, root});
    return {std::make_shared<const Plan>(schedule.project(rank)), bytes, bytes, 1, 0};
  }
  throw Error(ErrorCode::kInternal, "there is no " + algorithm + " for choices");
}

/// Whether calls can show which choice is best: all ranks must be equally long in them, and the
/// size must be known. With a codec the residuals lie where the choice says.
bool shows_best(const CallShape& shape) {
  const bool is_collective = shape.collective == Collective::kAllReduce ||
                             shape.collective == Collective::kReduceScatter ||
                             shape.collective == Collective::kAllGather ||
                             shape.collective == Collective::kAllToAll;
  return is_collective && shape.bytes != CallShape::kUneven && shape.codec.empty() &&
         shape.algorithms.empty();
}

/// "all_reduce up to 4096 bytes".
std::string kind_text(const CallShape& shape) {
  std::string text = to_string(shape.collective);
  if (shape.root >= 0) text += " with root " + std::to_string(shape.root);
  if (!shape.codec.empty()) text += " as " + shape.codec;
  if (shape.is_direct) text += " between devices";
  return shape.bytes == CallShape::kUneven
             ? text + " of parts that differ"
             : text + " up to " + std::to_string(size_class(shape.bytes)) + " bytes";
}

Choice without_plan(const Proposal& proposal) {
  return {nullptr, proposal.slice_bytes, proposal.part_bytes, proposal.window, proposal.seconds};
}

}  // namespace

PlanBook::Page::Page(const CallShape& shape, Source source, std::shared_ptr<Reacting> reacting)
    : shape_(shape),
      source_(source),
      reacting_(std::move(reacting)),
      calls_between_looks_(reacting_ && source == Source::kBroadcast && shows_best(shape) &&
                                   !shape.is_direct  // looks measure the hosts' links
                               ? reacting_->calls_between_looks(shape)
                               : 0) {
  shape_.coding = nullptr;
}

PlanBook::Page::Precursor PlanBook::Page::precursor_of(uint64_t number) const {
  if (source_ == Source::kAlone) return Precursor::kNone;
  if (number == 0) return Precursor::kAnnouncement;
  if (Refinement::is_review(number) && shows_best(shape_)) return Precursor::kReview;
  const bool is_look = calls_between_looks_ > 0 && number % calls_between_looks_ == 0;
  return is_look ? Precursor::kLook : Precursor::kNone;
}

PlanBook::Page::Look PlanBook::Page::look() const {
  if (!reacting_->is_on()) return Look::kNothing;
  return reacting_->epoch() == epoch_ ? Look::kRates : Look::kChoice;
}

// As if the call had the longest size of its class.
void PlanBook::Page::record(size_t choice, size_t bytes, int64_t nanoseconds) {
  const double longest = static_cast<double>(size_class(shape_.bytes)) + kFreeBytes;
  const double factor = longest / (static_cast<double>(bytes) + kFreeBytes);
  refinement_.record(choice, static_cast<int64_t>(static_cast<double>(nanoseconds) * factor));
}

void PlanBook::Page::review(uint64_t number, const Refinement::Figures& slowest) {
  const std::lock_guard lock(history_mutex_);
  const size_t events = refinement_.history().size();
  refinement_.review(number, slowest);
  if (logs(Level::kDebug) && refinement_.history().size() > events) {
    std::string names;
    for (const size_t i : refinement_.history().back().choices) {
      names += (names.empty() ? "" : ", ") + proposals_[i].algorithm;
    }
    log(Level::kDebug, kind_text(shape_) + ": from call " +
                           std::to_string(refinement_.history().back().call) + " on " + names);
  }
  // Memory for those that calls may still take; the first one is read by other threads.
  const std::vector<size_t>& present = refinement_.history().back().choices;
  for (size_t i = 1; i < choices_.size(); ++i) {
    if (std::ranges::find(present, i) == present.end()) choices_[i].plan.reset();
  }
}

PlanBook::PlanBook(std::shared_ptr<Planner> planner, int rank, int world_size,
                   const std::string& environment, bool refines, std::chrono::milliseconds pause)
    : planner_(std::move(planner)),
      rank_(rank),
      world_size_(world_size),
      environment_(environment),
      refines_(refines),
      courier_(std::make_shared<Page>(CallShape{Collective::kBroadcast, Publication::kBytes, 0},
                                      Page::Source::kAlone)),
      reviewer_(std::make_shared<Page>(CallShape{Collective::kAllReduce, kReviewBytes},
                                       Page::Source::kAlone)),
      looker_(std::make_shared<Page>(
          CallShape{Collective::kAllReduce, Reacting::most_bytes(world_size)},
          Page::Source::kAlone)),
      pause_(pause),
      reacting_(std::make_shared<Reacting>(planner_, rank, pause)),
      pages_(kMostPages) {
  settle(*courier_, choice_by_rank("binomial_tree", Collective::kBroadcast, 0, Publication::kBytes,
                                   rank, world_size));
  settle(*reviewer_, choice_by_rank("recursive_doubling", Collective::kAllReduce, -1, kReviewBytes,
                                    rank, world_size));
  settle(*looker_, choice_by_rank("recursive_doubling", Collective::kAllReduce, -1,
                                  Reacting::most_bytes(world_size), rank, world_size));
}

void PlanBook::log_choice(const Page& page, Level level) {
  if (!logs(level)) return;
  std::string others;
  for (size_t i = 1; i < page.proposals_.size(); ++i) {
    others += (i == 1 ? "; calls may show that another is better: " : ", ") +
              page.proposals_[i].algorithm;
  }
  const Proposal& first = page.proposals_.front();
  log(level, kind_text(page.shape_) + ": " + first.algorithm + ", predicted " +
                 std::to_string(static_cast<int64_t>(first.seconds * 1e6)) + " us" + others);
}

void PlanBook::settle(Page& page, Choice choice) {
  page.choices_.push_back(std::move(choice));
  page.is_settled_.store(true, std::memory_order_release);
}

std::shared_ptr<PlanBook::Page> PlanBook::find(const CallShape& shape, Page::Source source) {
  const Key key{key_of(shape), source};
  if (auto known = pages_.find(key)) return known;
  const std::lock_guard lock(mutex_);
  if (auto known = pages_.find(key)) return known;  // another thread has opened it
  auto page = new_page(shape, source);
  pages_.add(key, page);
  return page;
}

std::shared_ptr<PlanBook::Page> PlanBook::new_page(const CallShape& shape, Page::Source source) {
  auto page = std::make_shared<Page>(shape, source, reacting_);
  if (source == Page::Source::kAlone) {
    settle(*page, planner_->choose(shape));
  } else if (rank_ == 0) {
    settle(*page, proposals_for(shape, *reacting_));
  } else {
    planner_->check(page->shape_);
  }
  return page;
}

Publication PlanBook::proposals_for(const CallShape& shape, const Reacting& reacting) const {
  const size_t most = refines_ && shows_best(shape) ? Refinement::kMostChoices : 1;
  const uint64_t epoch = reacting.epoch();
  return {reacting.planner(epoch)->propose(shape, most), environment_, epoch};
}

std::shared_ptr<PlanBook::Page> PlanBook::open(const CallShape& shape) {
  return find(shape, world_size_ == 1 ? Page::Source::kAlone : Page::Source::kBroadcast);
}

std::shared_ptr<PlanBook::Page> PlanBook::open_alone(const CallShape& shape) {
  return find(shape, Page::Source::kAlone);
}

void PlanBook::publish(const Page& page, std::span<std::byte> bytes) const {
  Publication{page.proposals_, environment_, page.epoch_}.write(bytes);
}

void PlanBook::propose_anew(const Page& page, std::span<std::byte> message) const {
  const uint64_t epoch = page.reacting_->epoch();
  std::vector<Proposal> known = known_proposals(page, epoch);
  const Publication publication = known.empty()
                                      ? proposals_for(page.shape_, *page.reacting_)
                                      : Publication{std::move(known), environment_, epoch};
  publication.write(message.first(Publication::kBytes));
}

std::vector<Proposal> PlanBook::known_proposals(const Page& page, uint64_t epoch) {
  const std::lock_guard lock(page.history_mutex_);
  for (auto chapter = page.past_.rbegin(); chapter != page.past_.rend(); ++chapter) {
    if (!page.reacting_->have_same_rates(chapter->epoch, epoch)) continue;
    std::vector<Proposal> proposals = chapter->proposals;
    const auto best = static_cast<std::ptrdiff_t>(chapter->events.back().choices.front());
    std::rotate(proposals.begin(), proposals.begin() + best, proposals.begin() + best + 1);
    return proposals;
  }
  return {};
}

void PlanBook::take_look(Page& page, uint64_t number, std::span<const std::byte> message) const {
  switch (page.look()) {
    case Page::Look::kNothing:
      return;
    case Page::Look::kRates: {
      // While choices take turns, so do the rates.
      const Refinement& refinement = page.refinement_;
      const uint64_t pattern = refinement.is_exploring() ? 0
                                                         : reinterpret_cast<uintptr_t>(&page) +
                                                               refinement.choice_of(number);
      if (!page.reacting_->read(message, pattern)) return;
      const uint64_t epoch = page.reacting_->epoch();
      const std::string text = "rates have changed (epoch " + std::to_string(epoch) +
                               ", noticed before call " + std::to_string(number) + " of " +
                               kind_text(page.shape_) + "): " + page.reacting_->reason(epoch);
      log(rank_ == 0 ? Level::kInfo : Level::kDebug, text);
      RateHistory::instance().add(text);
      return;
    }
    case Page::Look::kChoice: {
      const std::lock_guard history(page.history_mutex_);
      Chapter past = chapter_of(page);
      settle(page, Publication::read(message.first(Publication::kBytes)), number);
      page.past_.push_back(std::move(past));
      return;
    }
  }
}

PlanBook::Chapter PlanBook::chapter_of(const Page& page) {
  if (page.source_ == Page::Source::kAlone) {
    const Choice& choice = page.choice();
    return {.epoch = 0,
            .reason = {},
            .proposals = {{.algorithm = choice.plan->algorithm,
                           .edges = choice.plan->edges,
                           .slice_bytes = choice.slice_bytes,
                           .part_bytes = choice.part_bytes,
                           .window = choice.window,
                           .seconds = choice.seconds}},
            .events = page.refinement_.history()};
  }
  return {page.epoch_, page.reason_, page.proposals_, page.refinement_.history()};
}

void PlanBook::settle(Page& page, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (!page.is_settled()) settle(page, Publication::read(bytes));
}

void PlanBook::settle(Page& page, Publication publication, uint64_t first) const {
  page.epoch_ = publication.epoch;
  page.planner_ = page.reacting_->planner(page.epoch_);
  page.reason_ = page.reacting_->reason(page.epoch_);
  page.proposals_ = std::move(publication.proposals);
  page.publisher_ = std::move(publication.environment);
  page.choices_.clear();
  std::vector<int64_t> nanoseconds;
  for (const Proposal& proposal : page.proposals_) {
    page.choices_.push_back(without_plan(proposal));
    nanoseconds.push_back(static_cast<int64_t>(proposal.seconds * 1e9));
  }
  page.refinement_ = Refinement(std::move(nanoseconds), first);
  choice(page, 0);
  log_choice(page, rank_ == 0 ? Level::kInfo : Level::kDebug);
  page.is_settled_.store(true, std::memory_order_release);
}

const Choice& PlanBook::choice(Page& page, size_t index) const {
  Choice& choice = page.choices_[index];
  if (choice.plan) return choice;
  choice.plan = plan_of(*page.planner_, page.shape_, page.proposals_[index], page.publisher_);
  return choice;
}

std::shared_ptr<const Plan> PlanBook::plan_of(const Planner& planner, const CallShape& shape,
                                              const Proposal& proposal,
                                              const std::string& publisher) const {
  const auto schedule = planner.schedule(shape, proposal.algorithm, proposal.edges);
  if (!schedule || schedule->digest() != proposal.digest) {
    const std::string found = schedule ? "makes another Schedule of it" : "does not know it";
    throw Error(ErrorCode::kMismatch,
                "rank 0 has chosen " + proposal.algorithm + " for " + to_string(shape.collective) +
                    ", but rank " + std::to_string(rank_) + " " + found + ": rank 0 runs " +
                    publisher + ", rank " + std::to_string(rank_) + " runs " + environment_,
                0);
  }
  return std::make_shared<const Plan>(schedule->project(rank_));
}

std::shared_ptr<PlanBook::Page> PlanBook::adopt(const CallShape& shape,
                                                const Proposal& proposal) const {
  auto page = std::make_shared<Page>(shape, Page::Source::kAlone);
  Choice choice = without_plan(proposal);
  choice.plan = plan_of(*planner_, shape, proposal, "another build of q7x2");
  settle(*page, std::move(choice));
  return page;
}

std::vector<PlanBook::Record> PlanBook::records() const {
  return records_of([](const Page& page) { return page.source_ == Page::Source::kBroadcast; });
}

std::vector<PlanBook::Record> PlanBook::records_with_helpers() const {
  return records_of([](const Page& page) {
    return page.source_ == Page::Source::kAlone && page.choice().plan->helpers > 0;
  });
}

std::vector<PlanBook::Record> PlanBook::records_of(bool (*counts)(const Page&)) const {
  const std::lock_guard lock(mutex_);
  std::vector<Record> records;
  for (const std::shared_ptr<Page>& page : pages_.values()) {
    if (!page->is_settled() || !counts(*page)) continue;
    const std::lock_guard history(page->history_mutex_);
    records.push_back({page->shape_.collective, page->shape_.bytes, page->shape_.root,
                       page->shape_.is_direct, page->shape_.codec, page->calls(), page->past_});
    records.back().chapters.push_back(chapter_of(*page));
    if (records.back().bytes != CallShape::kUneven) {
      records.back().bytes = size_class(records.back().bytes);
    }
  }
  return records;
}

std::shared_ptr<const Fabric> PlanBook::fabric() const {
  const std::lock_guard lock(mutex_);
  return reacting_->planner(reacting_->epoch())->fabric();
}

void PlanBook::clear() {
  const std::lock_guard lock(mutex_);
  pages_.clear();
  reacting_ = std::make_shared<Reacting>(planner_, rank_, pause_);
}

}  // namespace q7x2
