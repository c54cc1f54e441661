// BootstrapTable: the PeerBootstraps of this process, by key, and the messages between processes
// that make a group without a store. transport/bootstrap/peer_bootstrap.h has the protocol.
//
// The messages are active messages on the shared network, in envelopes
// (transport/trust/envelope.h). Between processes that use many connections they are notices of the
// StreamLane. They need no group: a message carries its sender's peer info, so that any process can
// be answered. The table keeps what arrives before this process has begun, answers for a bootstrap
// whose thread is busy or that has ended, and refuses keys that were used here before.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/peer/bootstrap_message.h"
#include "transport/peer/peer_info.h"
#include "transport/peer/peer_table.h"
#include "transport/trust/envelope.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

/// What has arrived for a bootstrap. The thread that waits takes it without the reactor's lock.
class BootstrapInbox {
 public:
  void put(BootstrapMessage message);
  std::vector<BootstrapMessage> take();
  /// Until something was put, or `timeout` has passed.
  void wait(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<BootstrapMessage> messages_;
};

class BootstrapTable {
 public:
  using Clock = std::chrono::steady_clock;
  // What is kept for bootstraps that this process has not begun. Whoever needs what was dropped
  // asks for it again.
  static constexpr size_t kMostEarly = 256;
  static constexpr size_t kMostEarlyBytes = size_t{8} << 20;
  static constexpr std::chrono::minutes kEarlyAge{10};
  static constexpr std::chrono::milliseconds kPause{500};
  // Bootstraps that have ended well and still answer members that have missed a message.
  static constexpr size_t kMostKept = 64;

  /// `process`: this one. Throws Error(kTransport).
  BootstrapTable(uint64_t process, Reactor& reactor, PeerTable& peers, Envelopes& envelopes);
  BootstrapTable(const BootstrapTable&) = delete;
  BootstrapTable& operator=(const BootstrapTable&) = delete;

  /// From now on messages for `stamp.key` go to `inbox`, beginning with those that came early.
  /// `stamp`: what all messages of this bootstrap have in common. False: the key was used before,
  /// or is in use.
  bool begin(Locked& locked, const BootstrapMessage& stamp, BootstrapInbox& inbox);
  /// The same for a key that may be used many times. Each time is an attempt: the next of this
  /// process, or one that others have begun since they failed in those that this process leaves
  /// out. `stamp` learns which one it is.
  bool begin_next(Locked& locked, BootstrapMessage& stamp, BootstrapInbox& inbox);
  /// `stamp` has gone on to a later attempt.
  void go_on(Locked& locked, const BootstrapMessage& stamp);
  /// A round's message, encoded, which its receiver may ask for until the bootstrap ends. It may be
  /// megabytes, and still on its way when the next question comes. So it is sent again for the
  /// first question, for another one after kPause, and from then on after twice as long each time.
  void keep(Locked& locked, const std::string& key, const std::string& exchange, int round,
            std::string sent);
  /// Whom the bootstrap waits for; -1: nobody.
  void set_waiting(Locked& locked, const std::string& key, int member);
  /// The key, or its attempt, stays used. `heard`: processes whose messages may still come, and
  /// mean no harm. `answer`: what others are told that use its key. `decision`: what members are
  /// told that do not know how it ended; nothing if this process does not know either.
  void end(Locked& locked, std::vector<uint64_t> heard, BootstrapMessage answer,
           std::optional<BootstrapMessage> decision);

  /// Opens the connection to a process, if it must, by the next incarnation if the last one broke.
  /// Null: it cannot be reached.
  Peer* reach(Locked& locked, const PeerInfo& to);
  /// The same, and sends the message, which is encoded. False: it was not sent.
  bool send(Locked& locked, const PeerInfo& to, std::string_view message);
  /// Handles what has arrived. False: nothing had.
  bool deliver(Locked& locked);

 private:
  struct Sent {
    std::string message;
    Clock::time_point again_from = {};
    std::chrono::milliseconds pause = kPause;
  };
  using SentPieces = std::map<std::pair<std::string, int>, Sent>;  // by exchange and round
  struct Running {
    BootstrapMessage stamp;
    BootstrapInbox* inbox = nullptr;
    int waiting_for = -1;
    SentPieces sent = {};
  };
  struct Used {
    std::vector<uint64_t> heard;
    BootstrapMessage answer;
    std::optional<BootstrapMessage> decision;
    SentPieces sent = {};  // which a member may have missed
  };
  struct Early {
    BootstrapMessage message;
    Clock::time_point arrived;
  };

  static ucs_status_t on_message(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  void start(const BootstrapMessage& stamp, BootstrapInbox& inbox);
  void handle(Locked& locked, BootstrapMessage message);
  void keep_early(BootstrapMessage message);
  void answer(Locked& locked, Running& running, const BootstrapMessage& asked);
  bool answer(Locked& locked, SentPieces& sent, const BootstrapMessage& asked);
  void refuse(Locked& locked, Used& used, const BootstrapMessage& message);
  void reply(Locked& locked, const BootstrapMessage& to, std::string_view message);

  const uint64_t process_;
  Reactor& reactor_;
  PeerTable& peers_;
  Envelopes& envelopes_;
  std::string host_key_;  // this process's; empty until it is needed
  struct Arrived {
    uint64_t sender;
    std::string bytes;
  };
  std::vector<Arrived> arrived_;
  std::map<std::string, Running> running_;  // by key
  std::map<std::string, Used> used_;
  std::deque<std::string> kept_;  // keys of those in `used_` that have sent pieces
  std::deque<Early> early_;
  size_t early_bytes_ = 0;
};

}  // namespace q7x2
