// AssemblyTable: the assemblies of this process, by uuid, and the messages between processes that
// make a group without a store. transport/bootstrap/assembly.h has the protocol.
//
// The messages are active messages on the shared network, in envelopes
// (transport/trust/envelope.h). They need no group: a message carries its sender's peer info, so
// that any process can be answered. The table keeps what arrives before this process has begun the
// assembly, answers for an assembly whose thread is busy, and refuses uuids that were used here
// before.
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

#include "transport/bootstrap/assembly_message.h"
#include "transport/peer/peer_info.h"
#include "transport/peer/peer_table.h"
#include "transport/trust/envelope.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

/// What has arrived for an assembly. The thread that waits takes it without the reactor's lock.
class AssemblyInbox {
 public:
  void put(AssemblyMessage message);
  std::vector<AssemblyMessage> take();
  /// Until something was put, or `timeout` has passed.
  void wait(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AssemblyMessage> messages_;
};

class AssemblyTable {
 public:
  using Clock = std::chrono::steady_clock;
  // What is kept for assemblies that this process has not begun. Whoever needs what was dropped
  // asks for it again.
  static constexpr size_t kMostEarly = 256;
  static constexpr size_t kMostEarlyBytes = size_t{8} << 20;
  static constexpr std::chrono::minutes kEarlyAge{10};
  static constexpr std::chrono::milliseconds kPause{500};

  /// `process`: this one. Throws Error(kTransport).
  AssemblyTable(uint64_t process, Reactor& reactor, PeerTable& peers, Envelopes& envelopes);
  AssemblyTable(const AssemblyTable&) = delete;
  AssemblyTable& operator=(const AssemblyTable&) = delete;

  /// From now on messages for `stamp.key` go to `inbox`, beginning with those that came early.
  /// `stamp`: what all messages of this assembly have in common. False: the key was used before.
  bool begin(Locked& locked, const AssemblyMessage& stamp, AssemblyInbox& inbox);
  /// A round's message, encoded, which its receiver may ask for until the assembly ends. It may be
  /// megabytes, and still on its way when the next question comes. So it is sent again for the
  /// first question, for another one after kPause, and from then on after twice as long each time.
  void keep(Locked& locked, const std::string& key, const std::string& exchange, int round,
            std::string sent);
  /// Whom the assembly waits for; -1: nobody.
  void set_waiting(Locked& locked, const std::string& key, int member);
  /// The key stays used. `heard`: processes whose messages may still come, and mean no harm.
  /// `answer`: what others are told that use its key. `decision`: what members are told that do not
  /// know how it ended; nothing if this process does not know either.
  void end(Locked& locked, std::vector<uint64_t> heard, AssemblyMessage answer,
           std::optional<AssemblyMessage> decision);

  /// Opens the connection to a process, if it must, by the next incarnation if the last one broke.
  /// False: the message, which is encoded, was not sent.
  bool send(Locked& locked, const PeerInfo& to, std::string_view message);
  /// Handles what has arrived. False: nothing had.
  bool deliver(Locked& locked);

 private:
  struct Sent {
    std::string message;
    Clock::time_point again_from = {};
    std::chrono::milliseconds pause = kPause;
  };
  struct Running {
    AssemblyMessage stamp;
    AssemblyInbox* inbox = nullptr;
    int waiting_for = -1;
    std::map<std::pair<std::string, int>, Sent> sent = {};  // by exchange and round
  };
  struct Used {
    std::vector<uint64_t> heard;
    AssemblyMessage answer;
    std::optional<AssemblyMessage> decision;
  };
  struct Early {
    AssemblyMessage message;
    Clock::time_point arrived;
  };

  static ucs_status_t on_message(void* arg, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  void handle(Locked& locked, AssemblyMessage message);
  void keep_early(AssemblyMessage message);
  void answer(Locked& locked, Running& running, const AssemblyMessage& asked);
  void refuse(Locked& locked, const Used& used, const AssemblyMessage& message);
  void reply(Locked& locked, const AssemblyMessage& to, std::string_view message);

  const uint64_t process_;
  Reactor& reactor_;
  PeerTable& peers_;
  Envelopes& envelopes_;
  std::string host_key_;  // of this process; empty until it is needed
  struct Arrived {
    uint64_t sender;
    std::string bytes;
  };
  std::vector<Arrived> arrived_;
  std::map<std::string, Running> running_;  // by key
  std::map<std::string, Used> used_;
  std::deque<Early> early_;
  size_t early_bytes_ = 0;
};

}  // namespace q7x2
