// FailureDetector: notices that processes have ended, and that hosts have fallen silent.
//
//   this host:   ProcessWatch, a pidfd per process, and a connection to its LifeLine
//   other hosts: Heartbeat, a TCP connection per process, and the LifeLine that answers
//   both:        BreakNotice, a call by which a process gives up its connection to another
//
// It only says what it found. The PeerTable decides what follows. Guarded by the reactor's lock;
// nothing here waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"
#include "transport/peer/break_notice.h"
#include "transport/peer/heartbeat.h"
#include "transport/peer/life_line.h"
#include "transport/peer/peer_life.h"
#include "transport/peer/process_watch.h"

namespace q7x2 {

class FailureDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Notice {
    void* who;
    Evidence evidence;
    std::string reason;        ///< completes "rank 3 failed: ..."
    bool was_reached = false;  ///< it was alive after the watch began
  };

  /// See HeartbeatListener for the arguments. Throws Error(kTransport), or Error(kInvalidArgument)
  /// if Q7X2_SILENCE is no number of seconds.
  FailureDetector(uint64_t process, const MessageKey& key,
                  const std::vector<IpAddress>& addresses = {});
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  /// Processes call this port; 0: they cannot.
  uint16_t port() const { return life_.port(); }
  /// Those of other hosts can from now on, and cannot at first: see HeartbeatListener.
  void open_port(const std::optional<HostAddresses>& hosts) { life_.open(hosts); }
  void shut_port() { life_.shut(); }
  /// Calls of this process of another host are answered from now on.
  void expect(uint64_t process) { life_.expect(process); }

  /// Watches a process of this host. False: it has ended already.
  bool watch_process(int pid, uint64_t process, void* who);
  /// Watches a process of another host, once. Without a port there is nothing to watch.
  /// `believes_refusals`: see Heartbeat; it holds from then on.
  void watch_host(const Heartbeat::Target& target, void* who, TimePoint now,
                  bool believes_refusals = false);
  /// Watches no more.
  void forget(const void* who);
  /// This incarnation of the connection to a process is given up: the process is answered no more
  /// until it is expected again. If it watches this one over that incarnation, it learns why.
  void give_up(uint64_t process, uint32_t incarnation,
               HeartbeatHello::Turn why = HeartbeatHello::Turn::kGivenUp) {
    life_.hang_up(process, incarnation, why);
  }
  /// Says what `target.topic` is to a process, also if it does not watch this one. If the process
  /// has ended, `look` says so of `who`, which must live as long as this object.
  void send_break_notice(const Heartbeat::Target& target, void* who);
  /// What other processes have said so since the last call.
  std::vector<HeartbeatHello> take_notices() { return life_.take_notices(); }

  /// See LifeLine.
  std::vector<IpAddress> take_admission_calls() { return life_.take_admission_calls(); }
  void admit_callers() { life_.admit_callers(); }

  /// How many processes of other hosts are watched.
  size_t num_heartbeats() const { return heartbeats_.size(); }
  /// Whether the process's host, another than this one, has answered lately.
  bool answers(const void* who, TimePoint now) const;
  /// The same, and there is no doubt that it answers now.
  bool answers_now(const void* who, TimePoint now) const;
  /// Whether the process's host, another than this one, is watched and has not answered lately, or
  /// not yet.
  bool is_out_of_reach(const void* who, TimePoint now) const;

  /// Any thread. Becomes readable when there is something to look at.
  int fd() const { return epoll_; }
  /// When to look at the latest, also if nothing has become readable.
  TimePoint due() const;
  /// What was found since the last call.
  std::vector<Notice> look(TimePoint now);

  /// Ends all connections in good order: those who watch this process learn that it has left.
  void close();

 private:
  /// A connection to the LifeLine of a process of this host.
  struct Line {
    int pid;
    PrivateSocket socket;
    TimePoint verdict = TimePoint::max();  ///< when to judge, because the line has ended
  };

  void add(int fd, const void* data) const;
  static void read(Line& line, TimePoint now);
  void judge_lines(TimePoint now, std::vector<Notice>& notices);

  const uint64_t process_;
  const Heartbeat::TimePoint::duration limit_;
  OwnedFd epoll_;
  const ProcessWatch processes_;
  LifeLine life_;
  std::map<const void*, OwnedFd> pidfds_;                         // by who
  std::map<const void*, Line> lines_;                             // by who
  std::map<const void*, std::unique_ptr<Heartbeat>> heartbeats_;  // by who
  std::vector<std::pair<void*, std::unique_ptr<BreakNotice>>> break_notices_;
  TimePoint next_round_{};
  TimePoint due_{};
  TimePoint verdict_due_ = TimePoint::max();  // of the first line that has ended
};

}  // namespace q7x2
