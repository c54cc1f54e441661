// PlanBook: the choices of one group. All ranks have the same ones, because one rank makes them.
//
// The first call of a kind opens a page. Rank 0 chooses, and its choice is broadcast in the group
// ahead of the call, in a message of fixed length (executor/plan_call.h). The other ranks make the
// Schedule that the message names, compare its digest with rank 0's, and project their Plans: they
// plan nothing. So what a planner depends on may differ between ranks (its settings, the rounding
// of the processor), and where it leads to another Schedule, the error names both sides.
//
// Pages are opened and forgotten in the order of the group's calls, which is the same on all ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/recent.h"
#include "plan/planner.h"

namespace q7x2 {

class PlanBook {
 public:
  /// The choice for calls of one kind.
  class Page {
   public:
    /// What coding costs is not kept: only the choice depends on it, and it may not outlive the
    /// call.
    explicit Page(const CallShape& shape) : shape_(shape) { shape_.coding = nullptr; }

    /// Any thread. Once true, `choice` may be read.
    bool is_settled() const { return is_settled_.load(std::memory_order_acquire); }
    const Choice& choice() const { return choice_; }
    /// True for the first call: its caller has the choice broadcast.
    bool announce() { return !is_announced_.exchange(true); }
    /// The broadcast will not be: the next call announces.
    void take_back() { is_announced_ = false; }

   private:
    friend class PlanBook;

    CallShape shape_;
    Choice choice_;
    std::atomic<bool> is_settled_{false};
    std::atomic<bool> is_announced_{false};
  };

  /// The length of a publication, in bytes.
  static constexpr size_t kBytes = 512;

  /// `environment`: what this rank runs on, for messages.
  PlanBook(std::shared_ptr<Planner> planner, int rank, int world_size,
           const std::string& environment);

  /// The page for a call. On rank 0 it is settled. Throws as Planner::choose on all ranks alike.
  std::shared_ptr<Page> open(const CallShape& shape);
  /// A page that each rank settles by itself: for calls that must know their choice at once.
  std::shared_ptr<Page> open_alone(const CallShape& shape);
  /// The page of the broadcasts themselves.
  const std::shared_ptr<Page>& courier() const { return courier_; }

  /// A settled page as bytes; kBytes of them.
  void publish(const Page& page, std::span<std::byte> bytes) const;
  /// Settles the page with rank 0's choice, unless it is. Throws Error: kMismatch where this rank
  /// makes another Schedule, kInternal where the bytes are no publication.
  void settle(Page& page, std::span<const std::byte> bytes);

  /// Forgets all choices. All ranks must do so between the same two collectives.
  void clear();

 private:
  /// Calls of one key share a page; the pages that each rank settles by itself are others.
  using Key = std::pair<CallKey, bool>;

  std::shared_ptr<Page> find(const CallShape& shape, bool alone);
  static void settle(Page& page, Choice choice);

  const std::shared_ptr<Planner> planner_;
  const int rank_;
  const int world_size_;
  const std::string environment_;
  std::shared_ptr<Page> courier_;
  std::mutex mutex_;
  Recent<Key, std::shared_ptr<Page>> pages_;
};

}  // namespace q7x2
