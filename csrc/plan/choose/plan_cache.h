// PlanCache: the choices of one group. All ranks have the same ones, because one rank makes them.
//
// The first call of a kind opens an entry. Rank 0 chooses, and what it proposes is broadcast in the
// group ahead of the call, in a message of fixed length (executor/collective/plan_call.h). The
// other ranks make the Schedule that the message names, compare its digest with rank 0's, and
// project their Plans: they plan nothing. So what a planner depends on may differ between ranks
// (its settings, the rounding of the processor), and where it leads to another Schedule, the error
// names both sides.
//
// Rank 0 may propose several choices. Then the calls themselves show which is best: at agreed
// numbers of calls a *tuning round* precedes a call, a small all-reduce of what the ranks have
// measured, by which all of them decide alike (plan/choose/refinement.h).
//
// Long calls are preceded by a *rate sample* now and then. It brings what the ranks' links have
// carried and what their processors have done, or, if some have changed, rank 0's choice for them
// as they are (plan/choose/reacting.h). If they are as they were before, it is the choice that was
// best then.
//
// Entries are opened and forgotten in the order of the group's calls, which is the same on all
// ranks. Calls are counted in the order in which they are submitted.
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
  /// What rank 0 has proposed for an entry at one time, and what became of it.
  struct Revision {
    uint64_t epoch = 0;
    std::string reason;  ///< why the epoch of the Fabric began; empty for the first one
    std::vector<Proposal> proposals;
    std::vector<Refinement::Event> events;  ///< choices are indices into `proposals`
  };
  /// What an entry has seen so far.
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
    /// Who settles it: this rank, at once, or a broadcast ahead of the first call.
    enum class Source : uint8_t { kAlone, kBroadcast };
    /// What has to precede a call.
    enum class Prerequisite : uint8_t { kNone, kAnnouncement, kTuningRound, kRateSample };
    /// What a rate sample is for: nothing, what was done, a choice for rates that have changed.
    enum class RateSample : uint8_t { kNothing, kRates, kChoice };

    /// What coding costs is not kept: only the choice depends on it, and it may not outlive the
    /// call.
    Entry(const CallShape& shape, Source source, std::shared_ptr<Reacting> reacting = nullptr);

    /// Any thread. Once true, `choice` may be read.
    bool is_settled() const { return is_settled_.load(std::memory_order_acquire); }
    /// Of the first call; of all calls with a codec.
    const Choice& choice() const { return choices_.front(); }

    // Below: under the reactor's lock. The number of a call: how many were submitted before it.

    uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
    /// A call is submitted.
    void count() { calls_.store(calls() + 1, std::memory_order_relaxed); }
    /// What has to precede the call with that number, equal on all ranks. A tuning round may turn
    /// out to have nothing to decide.
    Prerequisite prerequisite_of(uint64_t number) const;
    const Refinement& refinement() const { return refinement_; }
    /// A call of `bytes` bytes has taken so long, by the choice with that index.
    void record(size_t choice, size_t bytes, int64_t nanoseconds);
    /// `slowest`: see Refinement.
    void tune(uint64_t number, const Refinement::Figures& slowest);
    /// Equal on all ranks when a rate sample begins, and when the call that it precedes does.
    RateSample rate_sample() const;
    Reacting& reacting() const { return *reacting_; }
    /// That the choice was made for, of a settled entry. Null: as it was measured.
    std::shared_ptr<const Fabric> fabric() const { return planner_ ? planner_->fabric() : nullptr; }

   private:
    friend class PlanCache;

    CallShape shape_;
    const Source source_;
    const std::shared_ptr<Reacting> reacting_;   // null: no rate samples
    const uint64_t calls_between_rate_samples_;  // 0: no rate samples
    std::shared_ptr<Planner> planner_;           // of the epoch
    uint64_t epoch_ = 0;                         // of the Fabric that the proposals are for
    std::string reason_;                         // why that epoch began
    std::vector<Revision> past_;
    std::vector<Proposal> proposals_;
    std::vector<Choice> choices_;  // by proposal; without a Plan until there is a call for it
    std::string publisher_;        // the environment that the proposals come from
    std::atomic<bool> is_settled_{false};
    std::atomic<uint64_t> calls_{0};
    Refinement refinement_;
    mutable std::mutex history_mutex_;  // for threads that read the history
  };

  /// `environment`: what this rank runs on, for messages. `refines`: on rank 0, whether calls may
  /// change a choice. `pause`: see Reacting.
  PlanCache(std::shared_ptr<Planner> planner, int rank, int world_size,
            const std::string& environment, bool refines = true,
            std::chrono::milliseconds pause = {});

  /// The entry for a call. On rank 0 it is settled. Throws as Planner::choose on all ranks alike.
  /// Takes no lock if the entry is open.
  std::shared_ptr<Entry> open(const CallShape& shape);
  /// An entry that each rank settles by itself: for calls that must know their choice at once.
  std::shared_ptr<Entry> open_alone(const CallShape& shape);
  /// An entry that is settled by what another member of a server group has chosen
  /// (servers/server_group.h). It is not kept. Throws Error(kMismatch) where this member makes
  /// another Schedule.
  std::shared_ptr<Entry> adopt(const CallShape& shape, const Proposal& proposal) const;
  /// The entries of the broadcasts themselves, of tuning rounds and of rate samples.
  const std::shared_ptr<Entry>& courier() const { return courier_; }
  const std::shared_ptr<Entry>& tuner() const { return tuner_; }
  const std::shared_ptr<Entry>& rate_sampler() const { return rate_sampler_; }

  /// What is to be broadcast of a settled entry: Publication::kBytes bytes.
  void publish(const Entry& entry, std::span<std::byte> bytes) const;
  /// Settles the entry with what rank 0 has published, unless it is. Throws Error: kMismatch where
  /// this rank makes another Schedule, kInternal where the bytes are no publication.
  void settle(Entry& entry, std::span<const std::byte> bytes);
  /// Of a settled entry, by index. Makes its Plan the first time. Throws Error(kMismatch) as
  /// `settle`. Under the reactor's lock.
  const Choice& choice(Entry& entry, size_t index) const;
  /// On rank 0: plans for an entry whose rate sample is for a choice, and writes what the rate
  /// sample is to carry. Takes the time of planning, and needs no lock.
  void propose_anew(const Entry& entry, std::span<std::byte> message) const;
  /// Takes over what a rate sample before the call with that number has brought. Throws as
  /// `settle`. Under the reactor's lock.
  void take_rate_sample(Entry& entry, uint64_t number, std::span<const std::byte> message) const;
  /// By which the group's calls are measured. Under the reactor's lock.
  FairClock& clock() { return clock_; }
  /// What the group's reductions have done. Under the reactor's lock.
  ReductionMeter& reductions() { return reductions_; }

  /// Of all entries that are settled and that rank 0 has chosen for. Any thread.
  std::vector<Record> records() const;
  /// Of all entries that each rank settles by itself, and whose Plans have helpers. Any thread.
  std::vector<Record> records_with_helpers() const;

  /// The Fabric, as far as its changes were noticed. Any thread.
  std::shared_ptr<const Fabric> fabric() const;

  /// Forgets all choices, and what rates have been found to be. All ranks must do so between the
  /// same two collectives.
  void clear();

 private:
  /// Calls of one key share an entry; the entries that each rank settles by itself are others.
  using Key = std::pair<CallKey, Entry::Source>;

  std::shared_ptr<Entry> find(const CallShape& shape, Entry::Source source);
  std::shared_ptr<Entry> new_entry(const CallShape& shape, Entry::Source source);
  static void settle(Entry& entry, Choice choice);
  Publication proposals_for(const CallShape& shape, const Reacting& reacting) const;
  /// The proposals of the last revision with the rates of this epoch, the one that calls have found
  /// best first. Empty if there is none.
  static std::vector<Proposal> known_proposals(const Entry& entry, uint64_t epoch);
  static Revision revision_of(const Entry& entry);
  /// `counts` is asked of entries that are settled.
  std::vector<Record> records_of(bool (*counts)(const Entry&)) const;
  static void log_choice(const Entry& entry, Level level);
  void settle(Entry& entry, Publication publication, uint64_t first = 0) const;
  std::shared_ptr<const Plan> plan_of(const Planner& planner, const CallShape& shape,
                                      const Proposal& proposal, const std::string& publisher) const;

  const std::shared_ptr<Planner> planner_;
  const int rank_;
  const int world_size_;
  const std::string environment_;
  const bool refines_;
  std::shared_ptr<Entry> courier_;
  std::shared_ptr<Entry> tuner_;
  std::shared_ptr<Entry> rate_sampler_;
  const std::chrono::milliseconds pause_;
  std::shared_ptr<Reacting> reacting_;
  FairClock clock_;
  ReductionMeter reductions_;
  mutable std::mutex mutex_;  // to open entries, to settle them
  ConcurrentRecent<Key, Entry> entries_;
};

}  // namespace q7x2
