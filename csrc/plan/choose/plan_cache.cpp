#include "plan/choose/plan_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ledger/rate_history.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/schedule_search.h"

namespace q7x2 {
namespace {

static_assert(Publication::kMostProposals == Refinement::kMostChoices);

constexpr size_t kMostEntries = 1024;
/// Calls of one entry differ in size by up to a factor of two. The time of a call is taken as
/// proportional to its bytes plus this many.
constexpr double kFreeBytes = 32 * 1024;
/// Bytes of a scratch block for the figures of a tuning round.
constexpr size_t kTuningRoundBytes = 128;
static_assert(sizeof(Refinement::Figures) <= kTuningRoundBytes);

/// A choice that depends on the rank only, so that ranks cannot disagree about it.
Choice choice_by_rank(const std::string& algorithm, Collective collective, int root, size_t bytes,
                      int rank, int world_size) {
  for (const Generator& generator : generators()) {
    if (generator.name != algorithm || generator.collective != collective) continue;
    const Schedule schedule = generator.generate({collective, world_size, root});
    return {std::make_shared<const Plan>(schedule.project(rank)), bytes, bytes, 1, 0};
  }
  throw Error(ErrorCode::kInternal, "there is no " + algorithm + " for choices");
}

/// Whether the durations of calls can show which choice is best. All ranks must take part equally,
/// and the size must be known. Calls with a codec keep their choice, because their residuals depend
/// on it.
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

PlanCache::Entry::Entry(const CallShape& shape, Source source, std::shared_ptr<Reacting> reacting)
    : shape_(shape),
      source_(source),
      reacting_(std::move(reacting)),
      calls_between_rate_samples_(reacting_ && source == Source::kBroadcast && shows_best(shape) &&
                                          !shape.is_direct  // rate samples measure the hosts' links
                                      ? reacting_->calls_between_rate_samples(shape)
                                      : 0) {
  shape_.coding = nullptr;
}

PlanCache::Entry::Prerequisite PlanCache::Entry::prerequisite_of(uint64_t number) const {
  if (source_ == Source::kAlone) return Prerequisite::kNone;
  if (number == 0) return Prerequisite::kAnnouncement;
  if (Refinement::is_tuning_round(number) && shows_best(shape_)) return Prerequisite::kTuningRound;
  const bool is_rate_sample =
      calls_between_rate_samples_ > 0 && number % calls_between_rate_samples_ == 0;
  return is_rate_sample ? Prerequisite::kRateSample : Prerequisite::kNone;
}

PlanCache::Entry::RateSample PlanCache::Entry::rate_sample() const {
  if (!reacting_->is_on()) return RateSample::kNothing;
  return reacting_->epoch() == epoch_ ? RateSample::kRates : RateSample::kChoice;
}

// The time is scaled to that of a call with the longest size of its class.
void PlanCache::Entry::record(size_t choice, size_t bytes, int64_t nanoseconds) {
  const double longest = static_cast<double>(size_class(shape_.bytes)) + kFreeBytes;
  const double factor = longest / (static_cast<double>(bytes) + kFreeBytes);
  refinement_.record(choice, static_cast<int64_t>(static_cast<double>(nanoseconds) * factor));
}

void PlanCache::Entry::tune(uint64_t number, const Refinement::Figures& slowest) {
  const std::lock_guard lock(history_mutex_);
  const size_t events = refinement_.history().size();
  refinement_.tune(number, slowest);
  if (logs(Level::kDebug) && refinement_.history().size() > events) {
    std::string names;
    for (const size_t i : refinement_.history().back().choices) {
      names += (names.empty() ? "" : ", ") + proposals_[i].algorithm;
    }
    log(Level::kDebug, kind_text(shape_) + ": from call " +
                           std::to_string(refinement_.history().back().call) + " on " + names);
  }
  // Frees the Plans of choices that no call can take any more. The first one stays, because other
  // threads read it.
  const std::vector<size_t>& present = refinement_.history().back().choices;
  for (size_t i = 1; i < choices_.size(); ++i) {
    if (std::ranges::find(present, i) == present.end()) choices_[i].plan.reset();
  }
}

PlanCache::PlanCache(std::shared_ptr<Planner> planner, int rank, int world_size,
                     const std::string& environment, bool refines, std::chrono::milliseconds pause)
    : rank_(rank),
      world_size_(world_size),
      environment_(environment),
      refines_(refines),
      courier_(std::make_shared<Entry>(CallShape{Collective::kBroadcast, Publication::kBytes, 0},
                                       Entry::Source::kAlone)),
      tuner_(std::make_shared<Entry>(CallShape{Collective::kAllReduce, kTuningRoundBytes},
                                     Entry::Source::kAlone)),
      rate_sampler_(std::make_shared<Entry>(
          CallShape{Collective::kAllReduce, Reacting::most_bytes(world_size)},
          Entry::Source::kAlone)),
      pause_(pause),
      planner_(std::move(planner)),
      reacting_(std::make_shared<Reacting>(planner_, rank, pause)),
      entries_(kMostEntries) {
  settle(*courier_, choice_by_rank("binomial_tree", Collective::kBroadcast, 0, Publication::kBytes,
                                   rank, world_size));
  settle(*tuner_, choice_by_rank("recursive_doubling", Collective::kAllReduce, -1,
                                 kTuningRoundBytes, rank, world_size));
  settle(*rate_sampler_, choice_by_rank("recursive_doubling", Collective::kAllReduce, -1,
                                        Reacting::most_bytes(world_size), rank, world_size));
}

void PlanCache::log_choice(const Entry& entry, Level level) {
  if (!logs(level)) return;
  std::string others;
  for (size_t i = 1; i < entry.proposals_.size(); ++i) {
    others += (i == 1 ? "; calls may show that another is better: " : ", ") +
              entry.proposals_[i].algorithm;
  }
  const Proposal& first = entry.proposals_.front();
  log(level, kind_text(entry.shape_) + ": " + first.algorithm + ", predicted " +
                 std::to_string(static_cast<int64_t>(first.seconds * 1e6)) + " us" + others);
}

void PlanCache::settle(Entry& entry, Choice choice) {
  entry.choices_.push_back(std::move(choice));
  entry.is_settled_.store(true, std::memory_order_release);
}

std::shared_ptr<PlanCache::Entry> PlanCache::find(const CallShape& shape, Entry::Source source) {
  const Key key{key_of(shape), source};
  if (auto known = entries_.find(key)) return known;
  const std::lock_guard lock(mutex_);
  if (auto known = entries_.find(key)) return known;  // another thread has opened it
  auto entry = new_entry(shape, source);
  entries_.add(key, entry);
  return entry;
}

std::shared_ptr<PlanCache::Entry> PlanCache::new_entry(const CallShape& shape,
                                                       Entry::Source source) {
  auto entry = std::make_shared<Entry>(shape, source, reacting_);
  if (source == Entry::Source::kAlone) {
    settle(*entry, planner_->choose(shape));
  } else if (rank_ == 0) {
    settle(*entry, proposals_for(shape, *reacting_));
  } else {
    planner_->check(entry->shape_);
  }
  return entry;
}

Publication PlanCache::proposals_for(const CallShape& shape, const Reacting& reacting) const {
  const size_t most = refines_ && shows_best(shape) ? Refinement::kMostChoices : 1;
  const uint64_t epoch = reacting.epoch();
  return {reacting.planner(epoch)->propose(shape, most), environment_, epoch};
}

std::shared_ptr<PlanCache::Entry> PlanCache::open(const CallShape& shape) {
  return find(shape, world_size_ == 1 ? Entry::Source::kAlone : Entry::Source::kBroadcast);
}

std::shared_ptr<PlanCache::Entry> PlanCache::open_alone(const CallShape& shape) {
  return find(shape, Entry::Source::kAlone);
}

void PlanCache::publish(const Entry& entry, std::span<std::byte> bytes) const {
  Publication{entry.proposals_, environment_, entry.epoch_}.write(bytes);
}

void PlanCache::propose_anew(const Entry& entry, std::span<std::byte> message) const {
  const uint64_t epoch = entry.reacting_->epoch();
  std::vector<Proposal> known = known_proposals(entry, epoch);
  const Publication publication = known.empty()
                                      ? proposals_for(entry.shape_, *entry.reacting_)
                                      : Publication{std::move(known), environment_, epoch};
  publication.write(message.first(Publication::kBytes));
}

std::vector<Proposal> PlanCache::known_proposals(const Entry& entry, uint64_t epoch) {
  const std::lock_guard lock(entry.history_mutex_);
  for (auto revision = entry.past_.rbegin(); revision != entry.past_.rend(); ++revision) {
    if (!entry.reacting_->have_same_rates(revision->epoch, epoch)) continue;
    std::vector<Proposal> proposals = revision->proposals;
    const auto best = static_cast<std::ptrdiff_t>(revision->events.back().choices.front());
    std::rotate(proposals.begin(), proposals.begin() + best, proposals.begin() + best + 1);
    return proposals;
  }
  return {};
}

void PlanCache::take_rate_sample(Entry& entry, uint64_t number,
                                 std::span<const std::byte> message) const {
  switch (entry.rate_sample()) {
    case Entry::RateSample::kNothing:
      return;
    case Entry::RateSample::kRates: {
      // While choices take turns, there is no single pattern of traffic: 0, see RateWatch.
      const Refinement& refinement = entry.refinement_;
      const uint64_t pattern = refinement.is_exploring() ? 0
                                                         : reinterpret_cast<uintptr_t>(&entry) +
                                                               refinement.choice_of(number);
      if (!entry.reacting_->read(message, pattern)) return;
      const uint64_t epoch = entry.reacting_->epoch();
      const std::string text = "rates have changed (epoch " + std::to_string(epoch) +
                               ", noticed before call " + std::to_string(number) + " of " +
                               kind_text(entry.shape_) + "): " + entry.reacting_->reason(epoch);
      log(rank_ == 0 ? Level::kInfo : Level::kDebug, text);
      RateHistory::instance().add(text);
      return;
    }
    case Entry::RateSample::kChoice: {
      const std::lock_guard history(entry.history_mutex_);
      Revision past = revision_of(entry);
      settle(entry, Publication::read(message.first(Publication::kBytes)), number);
      entry.past_.push_back(std::move(past));
      return;
    }
  }
}

PlanCache::Revision PlanCache::revision_of(const Entry& entry) {
  if (entry.source_ == Entry::Source::kAlone) {
    const Choice& choice = entry.choice();
    return {.epoch = 0,
            .reason = {},
            .proposals = {{.algorithm = choice.plan->algorithm,
                           .edges = choice.plan->edges,
                           .slice_bytes = choice.slice_bytes,
                           .part_bytes = choice.part_bytes,
                           .window = choice.window,
                           .seconds = choice.seconds}},
            .events = entry.refinement_.history()};
  }
  return {entry.epoch_, entry.reason_, entry.proposals_, entry.refinement_.history()};
}

void PlanCache::settle(Entry& entry, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (!entry.is_settled()) settle(entry, Publication::read(bytes));
}

void PlanCache::settle(Entry& entry, Publication publication, uint64_t first) const {
  entry.epoch_ = publication.epoch;
  entry.planner_ = entry.reacting_->planner(entry.epoch_);
  entry.reason_ = entry.reacting_->reason(entry.epoch_);
  entry.proposals_ = std::move(publication.proposals);
  entry.publisher_ = std::move(publication.environment);
  entry.choices_.clear();
  std::vector<int64_t> nanoseconds;
  for (const Proposal& proposal : entry.proposals_) {
    entry.choices_.push_back(without_plan(proposal));
    nanoseconds.push_back(static_cast<int64_t>(proposal.seconds * 1e9));
  }
  entry.refinement_ = Refinement(std::move(nanoseconds), first);
  choice(entry, 0);
  log_choice(entry, rank_ == 0 ? Level::kInfo : Level::kDebug);
  entry.is_settled_.store(true, std::memory_order_release);
}

const Choice& PlanCache::choice(Entry& entry, size_t index) const {
  Choice& choice = entry.choices_[index];
  if (choice.plan) return choice;
  choice.plan = plan_of(*entry.planner_, entry.shape_, entry.proposals_[index], entry.publisher_);
  return choice;
}

std::shared_ptr<const Plan> PlanCache::plan_of(const Planner& planner, const CallShape& shape,
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

std::shared_ptr<PlanCache::Entry> PlanCache::adopt(const CallShape& shape,
                                                   const Proposal& proposal) const {
  auto entry = std::make_shared<Entry>(shape, Entry::Source::kAlone);
  Choice choice = without_plan(proposal);
  choice.plan = plan_of(*planner(), shape, proposal, "another build of q7x2");
  settle(*entry, std::move(choice));
  return entry;
}

std::vector<PlanCache::Record> PlanCache::records() const {
  return records_of([](const Entry& entry) { return entry.source_ == Entry::Source::kBroadcast; });
}

std::vector<PlanCache::Record> PlanCache::records_with_helpers() const {
  return records_of([](const Entry& entry) {
    return entry.source_ == Entry::Source::kAlone && entry.choice().plan->helpers > 0;
  });
}

std::vector<PlanCache::Record> PlanCache::records_of(bool (*counts)(const Entry&)) const {
  const std::lock_guard lock(mutex_);
  std::vector<Record> records;
  for (const std::shared_ptr<Entry>& entry : entries_.values()) {
    if (!entry->is_settled() || !counts(*entry)) continue;
    const std::lock_guard history(entry->history_mutex_);
    records.push_back({entry->shape_.collective, entry->shape_.bytes, entry->shape_.root,
                       entry->shape_.is_direct, entry->shape_.codec, entry->calls(), entry->past_});
    records.back().revisions.push_back(revision_of(*entry));
    if (records.back().bytes != CallShape::kUneven) {
      records.back().bytes = size_class(records.back().bytes);
    }
  }
  return records;
}

std::shared_ptr<const Fabric> PlanCache::fabric() const {
  const std::lock_guard lock(mutex_);
  return reacting_->planner(reacting_->epoch())->fabric();
}

std::shared_ptr<Planner> PlanCache::planner() const {
  const std::lock_guard lock(mutex_);
  return planner_;
}

void PlanCache::begin_anew(std::shared_ptr<Planner> planner) {
  entries_.clear();
  planner_ = std::move(planner);
  reacting_ = std::make_shared<Reacting>(planner_, rank_, pause_);
}

void PlanCache::clear() {
  const std::lock_guard lock(mutex_);
  begin_anew(planner_);
}

// The entries of calls that were submitted before still need their Planner.
void PlanCache::set_fabric(std::shared_ptr<const Fabric> fabric) {
  if (fabric->world_size() != world_size_) {
    throw Error(ErrorCode::kInvalidArgument, "a fabric of " + std::to_string(fabric->world_size()) +
                                                 " ranks for a group of " +
                                                 std::to_string(world_size_));
  }
  const std::lock_guard lock(mutex_);
  begin_anew(planner_->with(std::move(fabric)));
}

}  // namespace q7x2
