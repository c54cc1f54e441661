// PlanCache: the choices of one group. They are equal on all ranks, because rank 0 makes them.
//
// The first call of a kind opens an entry. Rank 0 makes the choice and broadcasts its proposal in
// the group before the call, in a message of fixed length (executor/collective/plan_call.h). The
// other ranks do not plan. They generate the Schedule that the message names, compare its digest
// with rank 0's, and project their Plans. So the input of a planner may differ between ranks (its
// settings, the rounding of the processor). If a rank generates another Schedule, the error names
// both sides.
//
// Rank 0 may propose several choices. Then the calls themselves show which one is best. Before
// calls with agreed numbers there is a *tuning round*: a small all-reduce of the times that the
// ranks have measured, by which all of them make the same decision (plan/choose/refinement.h).
//
// Before some long calls there is a *rate sample*. It carries the traffic of the ranks' links and
// the work of their processors. If these have changed, it carries rank 0's choice for the new rates
// instead (plan/choose/reacting.h). If the rates are again as they were at an earlier time, this is
// the choice that was best at that time.
//
// Entries are opened and forgotten in the order of the group's calls, which is equal on all ranks.
// Calls are counted in the order in which they are submitted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/concurrent_recent.h"
#include "base/log.h"
#include "ledger/reduction_meter.h"
#include "plan/choose/planner.h"
#include "plan/choose/publication.h"
#include "plan/choose/reacting.h"
#include "plan/choose/refinement.h"
#include "plan/cost/fair_clock.h"

namespace q7x2 {

class PlanCache {
 public:
  /// The proposals of rank 0 for an entry at one time, and the decisions between them.
  struct Revision {
    uint64_t epoch = 0;
    std::string reason;  ///< why the epoch of the Fabric began; empty for the first one
    std::vector<Proposal> proposals;
    std::vector<Refinement::Event> events;  ///< choices are indices into `proposals`
  };
  /// The history of an entry, for people.
  struct Record {
    Collective collective;
    size_t bytes = 0;  ///< the size class
    int root = -1;
    bool is_direct = false;
    std::string codec;
    uint64_t calls = 0;
    std::vector<Revision> revisions;  ///< the present one last
  };

  /// The choice for calls of one kind.
  class Entry {
   public:
    /// Who makes the choice: this rank, at once, or rank 0, in a broadcast before the first call.
    enum class Source : uint8_t { kAlone, kBroadcast };
    /// What must precede a call.
    enum class Prerequisite : uint8_t { kNone, kAnnouncement, kTuningRound, kRateSample };
    /// What a rate sample carries: nothing, the rates, or the choice for rates that have changed.
    enum class RateSample : uint8_t { kNothing, kRates, kChoice };

    /// The cost function of the codec is not kept: only the choice depends on it, and it may not
    /// outlive the call.
    Entry(const CallShape& shape, Source source, std::shared_ptr<Reacting> reacting = nullptr);

    /// Any thread. Once true, `choice` may be read.
    bool is_settled() const { return is_settled_.load(std::memory_order_acquire); }
    /// The first of the proposed choices: that of the first call, and of all calls with a codec.
    const Choice& choice() const { return choices_.front(); }

    // The functions below are called under the reactor's lock. The number of a call is the number
    // of calls submitted before it.

    uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
    /// Called when a call is submitted.
    void count() { calls_.store(calls() + 1, std::memory_order_relaxed); }
    /// What must precede the call with that number. Equal on all ranks. A tuning round may find
    /// nothing to decide.
    Prerequisite prerequisite_of(uint64_t number) const;
    const Refinement& refinement() const { return refinement_; }
    /// Records that a call of `bytes` bytes, by the choice with that index, took `nanoseconds`.
    void record(size_t choice, size_t bytes, int64_t nanoseconds);
    /// `slowest`: see Refinement.
    void tune(uint64_t number, const Refinement::Figures& slowest);
    /// Equal on all ranks when a rate sample begins, and when the call that it precedes begins.
    RateSample rate_sample() const;
    Reacting& reacting() const { return *reacting_; }
    /// The Fabric for which the choice of a settled entry was made. Null: the Fabric as it was
    /// measured.
    std::shared_ptr<const Fabric> fabric() const { return planner_ ? planner_->fabric() : nullptr; }

   private:
    friend class PlanCache;

    CallShape shape_;
    const Source source_;
    const std::shared_ptr<Reacting> reacting_;   // null: no rate samples
    const uint64_t calls_between_rate_samples_;  // 0: no rate samples
    std::shared_ptr<Planner> planner_;           // the planner of the epoch
    uint64_t epoch_ = 0;  // the Fabric's epoch for which the proposals were made
    std::string reason_;  // why that epoch began
    std::vector<Revision> past_;
    std::vector<Proposal> proposals_;
    std::vector<Choice> choices_;  // by proposal; the Plan is made when a call needs it
    std::string publisher_;        // the environment of the rank that made the proposals
    std::atomic<bool> is_settled_{false};
    std::atomic<uint64_t> calls_{0};
    Refinement refinement_;
    mutable std::mutex history_mutex_;  // guards the history against threads that read it
  };

  /// `environment`: the build and processor of this rank, for messages. `refines`: on rank 0,
  /// whether the durations of calls may change a choice. `pause`: see Reacting.
  PlanCache(std::shared_ptr<Planner> planner, int rank, int world_size,
            const std::string& environment, bool refines = true,
            std::chrono::milliseconds pause = {});

  /// The entry for a call. On rank 0 it is settled. Throws as Planner::choose, on all ranks. Takes
  /// no lock if the entry exists.
  std::shared_ptr<Entry> open(const CallShape& shape);
  /// An entry that each rank settles by itself, for calls that need their choice at once.
  std::shared_ptr<Entry> open_alone(const CallShape& shape);
  /// An entry that is settled with a choice of another member of a server group
  /// (servers/server_group.h). It is not stored. Throws Error(kMismatch) if this member generates
  /// another Schedule.
  std::shared_ptr<Entry> adopt(const CallShape& shape, const Proposal& proposal) const;
  /// The entries for the broadcasts themselves, for tuning rounds and for rate samples.
  const std::shared_ptr<Entry>& courier() const { return courier_; }
  const std::shared_ptr<Entry>& tuner() const { return tuner_; }
  const std::shared_ptr<Entry>& rate_sampler() const { return rate_sampler_; }

  /// Writes the broadcast of a settled entry: Publication::kBytes bytes.
  void publish(const Entry& entry, std::span<std::byte> bytes) const;
  /// Settles the entry with the broadcast of rank 0, unless it is settled. Throws Error: kMismatch
  /// if this rank generates another Schedule, kInternal if the bytes are not a publication.
  void settle(Entry& entry, std::span<const std::byte> bytes);
  /// A choice of a settled entry, by index. Makes its Plan the first time. Throws Error(kMismatch)
  /// as `settle`. Under the reactor's lock.
  const Choice& choice(Entry& entry, size_t index) const;
  /// On rank 0: plans for an entry whose rate sample carries a choice, and writes what the rate
  /// sample must carry. Takes the time of planning, and needs no lock.
  void propose_anew(const Entry& entry, std::span<std::byte> message) const;
  /// Applies what a rate sample before the call with that number has carried. Throws as `settle`.
  /// Under the reactor's lock.
  void take_rate_sample(Entry& entry, uint64_t number, std::span<const std::byte> message) const;
  /// The clock that measures the group's calls. Under the reactor's lock.
  FairClock& clock() { return clock_; }
  /// The work that the group's reductions have done. Under the reactor's lock.
  ReductionMeter& reductions() { return reductions_; }

  /// The history of all settled entries that rank 0 has chosen for. Any thread.
  std::vector<Record> records() const;
  /// The same for all entries that each rank settles by itself and whose Plans have helpers. Any
  /// thread.
  std::vector<Record> records_with_helpers() const;

  /// The Fabric, with its changes as far as they were noticed. Any thread.
  std::shared_ptr<const Fabric> fabric() const;

  /// The Planner for the Fabric as it was measured. Any thread.
  std::shared_ptr<Planner> planner() const;
  /// Forgets all choices and all changes of rates. All ranks must call it between the same two
  /// collectives.
  void clear();
  /// The same, and chooses by another Fabric of the same ranks from now on. Calls that were
  /// submitted before keep their Plans. Throws Error(kInvalidArgument).
  void set_fabric(std::shared_ptr<const Fabric> fabric);

 private:
  /// Calls with the same key share an entry, but not with entries that each rank settles by itself.
  using Key = std::pair<CallKey, Entry::Source>;

  void begin_anew(std::shared_ptr<Planner> planner);
  std::shared_ptr<Entry> find(const CallShape& shape, Entry::Source source);
  std::shared_ptr<Entry> new_entry(const CallShape& shape, Entry::Source source);
  static void settle(Entry& entry, Choice choice);
  Publication proposals_for(const CallShape& shape, const Reacting& reacting) const;
  /// The proposals of the last revision that had the rates of this epoch, with the one that calls
  /// found best first. Empty if there is none.
  static std::vector<Proposal> known_proposals(const Entry& entry, uint64_t epoch);
  static Revision revision_of(const Entry& entry);
  /// `counts` selects entries. It is only called for settled ones.
  std::vector<Record> records_of(bool (*counts)(const Entry&)) const;
  static void log_choice(const Entry& entry, Level level);
  void settle(Entry& entry, Publication publication, uint64_t first = 0) const;
  std::shared_ptr<const Plan> plan_of(const Planner& planner, const CallShape& shape,
                                      const Proposal& proposal, const std::string& publisher) const;

  const int rank_;
  const int world_size_;
  const std::string environment_;
  const bool refines_;
  std::shared_ptr<Entry> courier_;
  std::shared_ptr<Entry> tuner_;
  std::shared_ptr<Entry> rate_sampler_;
  const std::chrono::milliseconds pause_;
  FairClock clock_;
  ReductionMeter reductions_;
  /// Guards the next two members, and entries that are opened or settled.
  mutable std::mutex mutex_;
  std::shared_ptr<Planner> planner_;
  std::shared_ptr<Reacting> reacting_;
  ConcurrentRecent<Key, Entry> entries_;
};

}  // namespace q7x2
