// DagWindow: steps a Plan's DAG through the slices of the data. Pure: no clock, no messages, no
// I/O.
//
// The whole DAG runs once per slice. At most `window` slices are in progress; each occupies one of
// `window` places. The owner admits slices, takes ops that are ready, runs them in its own way
// (over a network, on a virtual clock, on symbols) and reports their completion.
//
//   DagWindow dag(plan, num_slices, window);
//   while (dag.can_admit()) dag.admit();
//   while (const auto step = dag.next()) {
//     run(plan.ops[step->op], dag.slice_at(step->place));
//     if (dag.complete(*step)) while (dag.can_admit()) dag.admit();
//   }
//
// Slices are admitted in order. Slice k uses place k % window, so it waits until slice k - window
// and all earlier slices are complete. The owner may delay an admission, for example while the
// memory of a place is still in use elsewhere.
//
// Slices cannot make a group deadlock. Suppose that the Plans of all ranks complete one slice, and
// that an admission is delayed only while some rank has not completed the slice that used the place
// before. Let k be the first slice that is not complete on all ranks. All slices before k are
// complete on all ranks, so every rank may admit slice k, and does. Slices share no op, no block
// and no message, and an op that is ready stays ready. So the ops of slice k complete as if there
// were no other slice, and k grows until it is the number of slices. The windows of the ranks may
// differ. So it is enough that the checker runs one slice (plan/check/checker.h).
//
// The places also bound the memory: memory allocated once per place is enough for any number of
// slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "plan/ir/plan.h"

namespace q7x2 {

class DagWindow {
 public:
  /// An op of the slice at `place`.
  struct Step {
    uint32_t place = 0;
    uint32_t op = 0;

    bool operator==(const Step&) const = default;
  };

  using Memory = std::pmr::memory_resource;

  /// Has no ops. `memory`, here and below, must outlive the window.
  explicit DagWindow(Memory* memory = std::pmr::get_default_resource())
      : places_(memory), waits_(memory), ready_(memory) {}
  /// `plan` must outlive the window. `window`: at least 1; more than `num_slices` has no effect.
  DagWindow(const Plan& plan, size_t num_slices, size_t window,
            Memory* memory = std::pmr::get_default_resource());

  /// Whether there is a next slice and its place is free.
  bool can_admit() const { return next_slice_ < num_slices_ && next_slice_ < done_ + window(); }
  /// The place that a slice uses.
  uint32_t place_of(size_t slice) const { return static_cast<uint32_t>(slice % window()); }
  /// Begins the next slice: its ops without dependencies become ready. Requires `can_admit()`.
  void admit();

  /// The next op to start, in the order in which they became ready. Each op of a slice is returned
  /// once.
  std::optional<Step> next() {
    if (taken_ == ready_.size()) {
      ready_.clear();
      taken_ = 0;
      return std::nullopt;
    }
    return ready_[taken_++];
  }
  /// Marks an op that `next` returned as complete. Returns true if it was the last one of its
  /// slice.
  bool complete(Step step) { return complete(step, plan_->successors_of(plan_->ops[step.op])); }
  /// The same for callers that know the op's successors without the Plan.
  bool complete(Step step, std::span<const uint32_t> successors);

  size_t num_slices() const { return num_slices_; }
  /// Number of slices that have been admitted, which is the number of the next one.
  size_t admitted() const { return next_slice_; }
  /// Number of leading slices that are complete.
  size_t slices_done() const { return done_; }
  bool done() const { return done_ == num_slices_; }
  /// The slice at the place; if it is complete, it was the last one there.
  size_t slice_at(uint32_t place) const { return places_[place].slice; }
  /// Maximum number of slices in progress at once.
  size_t window() const { return places_.size(); }

 private:
  struct Place {
    size_t slice = 0;
    uint32_t ops_left = 0;
  };

  const Plan* plan_ = nullptr;
  size_t num_slices_ = 0;
  size_t next_slice_ = 0;
  size_t done_ = 0;
  std::pmr::vector<Place> places_;
  std::pmr::vector<uint32_t> waits_;  // [place][op]: number of dependencies that are not complete
  std::pmr::vector<Step> ready_;      // from index `taken_` on
  size_t taken_ = 0;
};

}  // namespace q7x2
