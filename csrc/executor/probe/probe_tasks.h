// The conversations that a probe measures by: a ping-pong of tiny messages, a stream in both
// directions at once, and a train of long messages. Both ends submit the same task with each other
// as the peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "executor/probe/pipe_watch.h"
#include "executor/probe/stream_meter.h"
#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

/// A task of several messages with one peer, done when no request of its is in progress.
class Conversation : public Task {
 public:
  std::string name() const override;

 protected:
  /// `tiny`: no message is longer than shared memory's descriptors carry, so that two ranks that
  /// talk through it as collectives do, do so here.
  Conversation(std::shared_ptr<Group> group, const char* what, int peer, Wire wire, bool tiny,
               std::chrono::milliseconds timeout)
      : Task(std::move(group), timeout),
        what_(what),
        peer_(peer),
        wire_(wire),
        shares_memory_(tiny && wire == Wire::kShared &&
                       this->group().messages().shares_memory(peer)) {}

  virtual void begin(Locked& locked) = 0;
  /// `channel` tells the kinds of messages apart: a message meets a receive of its channel.
  void send(Locked& locked, uint32_t channel, const void* data, size_t bytes);
  void receive(Locked& locked, uint32_t channel, void* data, size_t bytes);
  bool shares_memory() const { return shares_memory_; }
  virtual void received(Locked& locked, uint32_t channel, size_t bytes) = 0;

 private:
  struct Early {
    uint32_t channel;
    ShmChannel::Message message;
  };

  void start(Locked& locked) final;
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) final;
  void arrived(Locked& locked, uint32_t token, const ShmChannel::Message& message) final;
  void take(Locked& locked, uint32_t channel, const ShmChannel::Message& message);
  /// Takes the messages that were there before their receives, and finishes where nothing is open.
  void go_on(Locked& locked);

  const char* const what_;
  const int peer_;
  const Wire wire_;
  const bool shares_memory_;
  std::map<uint32_t, std::pair<void*, size_t>> destinations_;  // by channel
  std::deque<Early> early_;
  int open_ = 0;  // requests in progress
};

/// Round trips of a few bytes, then a few bursts of messages in one direction.
///
///   first   ping >  ping >  ... ping, last >  message message ... message >         ...
///   other        < pong  < pong           < pong                          < answer
///
/// A burst takes a round trip and the CPU time of each message. Far hosts exchange a few messages:
/// each costs milliseconds, of which little is noise.
class PingTask final : public Conversation {
 public:
  PingTask(std::shared_ptr<Group> group, int peer, Wire wire, bool first,
           std::chrono::milliseconds timeout)
      : Conversation(std::move(group), "ping", peer, wire, /*tiny=*/true, timeout), first_(first) {}

  // Only at the end that is `first`, and only after `done`.
  /// Seconds: the lower quartile, since whatever else runs on the machine only adds.
  double round_trip() const;
  double spread() const;    ///< interquartile range over the median
  double overhead() const;  ///< seconds for each message of the fastest burst; far hosts: 0

 private:
  void begin(Locked& locked) override;
  void received(Locked& locked, uint32_t channel, size_t bytes) override;
  void ping(Locked& locked);
  void pong(Locked& locked);
  void expect_burst(Locked& locked);
  void burst(Locked& locked);
  double quantile_of_round_trips(double part) const;
  /// By the shortest of some: other work makes round trips between near hosts longer.
  bool is_between_far_hosts() const;
  /// Whether the next ping is the last one.
  bool has_enough() const;

  const bool first_;
  std::vector<double> round_trips_;
  TimePoint started_at_;
  TimePoint ping_at_;
  TimePoint burst_at_;
  int burst_received_ = 0;
  uint64_t last_ = 0;  // the content of a ping: how many bursts follow; 0: it is not the last
  uint64_t heard_ = 0;
  std::vector<double> bursts_;  // seconds
};

/// Both ends send as fast as the other takes it, for a time; each measures what it receives and
/// what is acknowledged to it. Between far hosts one end sends, unless the lane of many connections
/// carries it: over UCX acknowledgements would wait behind what the other one has in its buffers.
///
/// What is on the way is bounded by acknowledgements, so that a slow link need not be drained for
/// long: at least kLeastWindow, at most what the link has been seen to carry in some milliseconds.
/// Between far hosts PipeWatch says how much.
class StreamTask final : public Conversation {
 public:
  struct Far {
    double round_trip = 0;  ///< seconds; 0: the hosts are near
    bool sends = false;
    bool receives = false;
  };

  /// Ends `seconds` after the first acknowledgement, or as soon as enough has passed; between far
  /// hosts, with 0 seconds, when the pipe is full.
  StreamTask(std::shared_ptr<Group> group, int peer, Wire wire, double seconds, Far far,
             std::chrono::milliseconds timeout);

  // Only after `done`. What arrived here, and what the peer acknowledged of what went.
  const StreamMeter& arrivals() const { return arrivals_; }
  const StreamMeter& acknowledgements() const { return acknowledgements_; }

 private:
  static constexpr size_t kLongest = size_t{256} << 10;
  static constexpr int kPosted = 16;

  void begin(Locked& locked) override;
  void received(Locked& locked, uint32_t channel, size_t bytes) override;
  void fill(Locked& locked);
  bool has_enough(TimePoint now) const;
  /// Bytes that may be on the way.
  size_t window(TimePoint now) const;

  const double seconds_;
  const Far far_;
  std::unique_ptr<std::byte[]> outgoing_;
  std::unique_ptr<std::byte[]> incoming_;  // all messages land here: nobody reads them

  size_t sent_ = 0;
  std::queue<size_t> unacknowledged_;  // lengths
  bool finished_sending_ = false;

  StreamMeter arrivals_;
  StreamMeter acknowledgements_;
  PipeWatch pipe_;
  TimePoint began_;
  double round_trip_ = 0;  // seconds, measured with the first message
};

/// One end sends a few long messages, each when the one before has been acknowledged. The shortest
/// may have had a path to itself that several pairs share, so the median counts.
class TrainTask final : public Conversation {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{4} << 20;

  TrainTask(std::shared_ptr<Group> group, int peer, Wire wire, uint64_t bytes, bool sends,
            std::chrono::milliseconds timeout);

  /// Seconds from a message to its acknowledgement, the median; 0 at the other end. Only after
  /// `done`.
  double seconds() const;

 private:
  static constexpr int kMessages = 3;

  void begin(Locked& locked) override;
  void received(Locked& locked, uint32_t channel, size_t bytes) override;
  void send_next(Locked& locked);

  const size_t bytes_;
  const bool sends_;
  std::unique_ptr<std::byte[]> buffer_;
  TimePoint sent_at_;
  std::vector<double> times_;
};

}  // namespace q7x2
