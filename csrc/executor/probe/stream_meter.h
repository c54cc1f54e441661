// How fast a stream runs, from what its two ends notice.
//
//   sender     data data data .  .  .  .  .  .  .  data data     acknowledged: what surely went
//   wire         data data data data data                        through, in a time that is long
//   receiver   [      not scheduled      ] data data data data   received: steady, unless it was
//   kept
//                                                                from looking
//
// The receiver's figure is the better one: it can leave out the beginning, which the buckets of
// shaped links and the buffers of NICs let pass faster than what follows. But a process that was
// kept from running finds all that came meanwhile at once, and a few messages out of its memory
// may be all that it sees. The sender cannot be deceived like that: it sends for a least time, and
// nothing is acknowledged that did not pass in it, apart from one window. So the receiver's figure
// counts as far as the sender's confirms it.
//
// Between far hosts a stream begins at a fraction of its rate, and ends once that grows no more: of
// both ends the last three round trips count.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/task/task.h"

namespace q7x2 {

/// The bytes that had passed one end of a stream by when.
class StreamMeter {
 public:
  /// `seconds`: what the stream takes on a slow link. `round_trip`: seconds between far hosts, else
  /// 0.
  explicit StreamMeter(double seconds, double round_trip = 0)
      : seconds_(seconds), round_trip_(round_trip) {}

  /// In the order of `time`.
  void passed(TimePoint time, size_t bytes);

  size_t bytes() const { return notes_.empty() ? 0 : notes_.back().bytes; }
  bool empty() const { return notes_.empty(); }
  /// Since the first bytes passed.
  double seconds_at(TimePoint now) const;

  /// Bytes a second after the beginning: the median of parts with equally many messages, so that a
  /// pause counts in one of them only. Between far hosts parts are the last round trips, because a
  /// window passes in each, and the rate is that of all of them together: what connections share
  /// passes now for one and then for another. 0 where less than two messages passed.
  double steady_rate() const;
  double spread() const;  ///< range of the rates of the parts, over the rate
  /// The most bytes by which the beginning was ever ahead of the steady rate: what a shaped link
  /// lets pass at once after a pause, or what a receiver found at once.
  double burst() const;
  /// Bytes a second between the first message and the last. 0 where less than two passed.
  double whole_rate() const;
  /// What a sender's figures confirm: the whole rate; between far hosts, where the beginning is
  /// slow, the steady rate.
  double confirmed() const { return round_trip_ > 0 ? steady_rate() : whole_rate(); }

 private:
  struct Note {
    TimePoint time;
    size_t bytes;  // so far
  };
  struct Part {
    Note begin;
    Note end;
  };

  static double rate_between(const Note& from, const Note& to);
  std::vector<double> part_rates() const;
  std::vector<Part> last_round_trips() const;  // the last one first, without gaps

  const double seconds_;
  const double round_trip_;
  std::vector<Note> notes_;
};

/// The rate of a stream that its receiver saw run at a steady rate of `received`, and of which its
/// sender saw `acknowledged` on the whole.
double confirmed_rate(double received, double acknowledged);

}  // namespace q7x2
