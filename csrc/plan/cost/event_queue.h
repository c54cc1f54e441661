// EventQueue: events of a virtual clock, the earliest first, equal times by their turn, equal turns
// in the order in which they came up.
//
// Most events come from sources whose times never go back: what leaves a wire leaves it in order,
// and what takes a fixed delay arrives in the order in which it set out. Such a source is a stream.
// Its events wait in a queue, and only the first one of each stream is in the heap. So the heap has
// as many entries as there are busy sources, not as many as there are messages on their way, and
// nearly every push is an append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/cost/fifo.h"

namespace q7x2 {

/// `What`: copied often, so it should be small.
template <typename What>
class EventQueue {
 public:
  struct Event {
    double time;
    uint64_t turn;   ///< among equal times
    uint32_t order;  ///< among equal turns
    What what;
  };

  /// `streams`: how many there are; see `push`.
  explicit EventQueue(size_t streams) : streams_(streams) {}

  bool empty() const { return heap_.empty(); }

  /// Events of one stream should be pushed with times that do not decrease, and turns of equal
  /// times neither. What breaks that rule is put into a stream of its own, so it is only slower.
  void push(size_t stream, double time, uint64_t turn, const What& what) {
    Fifo<Event>& fifo = streams_[stream];
    const Event event{time, turn, order_++, what};
    if (fifo.empty()) {
      fifo.push_back(event);
      add(head_of(event, stream));
    } else if (!(head_of(event, stream) < head_of(fifo.back(), stream))) {
      fifo.push_back(event);
    } else {
      push_apart(event);
    }
  }

  /// Removes the first event. The queue must not be empty.
  Event pop() {
    const size_t stream = heap_.front().stream;
    Fifo<Event>& fifo = streams_[stream];
    const Event event = fifo.front();
    fifo.pop_front();
    if (!fifo.empty()) {
      sift_down(head_of(fifo.front(), stream));
      return event;
    }
    if (stream >= first_apart_) idle_apart_.push_back(stream);
    const Head last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sift_down(last);
    return event;
  }

 private:
  /// The first event of a stream.
  struct Head {
    double time;
    uint64_t turn;
    uint32_t order;
    uint32_t stream;

    bool operator<(const Head& other) const {
      if (time != other.time) return time < other.time;
      return turn < other.turn || (turn == other.turn && order < other.order);
    }
  };

  static Head head_of(const Event& event, size_t stream) {
    return {event.time, event.turn, event.order, static_cast<uint32_t>(stream)};
  }

  void push_apart(const Event& event) {
    if (idle_apart_.empty()) {
      idle_apart_.push_back(streams_.size());
      streams_.emplace_back();
    }
    const size_t stream = idle_apart_.back();
    idle_apart_.pop_back();
    streams_[stream].push_back(event);
    add(head_of(event, stream));
  }

  void add(const Head& head) {
    size_t at = heap_.size();
    heap_.push_back(head);
    for (; at > 0; at = (at - 1) / 2) {
      const size_t above = (at - 1) / 2;
      if (!(head < heap_[above])) break;
      heap_[at] = heap_[above];
    }
    heap_[at] = head;
  }

  /// Puts `head` where the root was.
  void sift_down(const Head& head) {
    const size_t size = heap_.size();
    size_t at = 0;
    for (size_t below = 1; below < size; below = 2 * at + 1) {
      below += below + 1 < size && heap_[below + 1] < heap_[below] ? 1 : 0;
      if (!(heap_[below] < head)) break;
      heap_[at] = heap_[below];
      at = below;
    }
    heap_[at] = head;
  }

  std::vector<Fifo<Event>> streams_;
  std::vector<Head> heap_;
  const size_t first_apart_ = streams_.size();
  std::vector<size_t> idle_apart_;  // streams from `first_apart_` on that hold nothing
  uint32_t order_ = 0;
};

}  // namespace q7x2
