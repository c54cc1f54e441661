// ShmChannel: the messages of one group between ranks of one host, through memory they all map.
//
// Every member owns a segment that it alone writes and the others read:
//
//   header      who owns it, and whether it sleeps (odd) or is awake (even)
//   verdicts    for each member: whether the owner has mapped that member's segment
//   taken       for each member: how many of that member's descriptors the owner has taken
//   returned    for each member and ticket: how many of its messages the owner is done with
//   mailboxes   for each member: a ring of descriptors to it, each one cache line
//   arena       what the descriptors tell of and do not carry themselves
//   places      the same for messages of the user, as many for each member
//
// A descriptor carries up to 40 bytes itself: a tiny message costs one cache line. A longer one is
// copied into the arena once, for all its receivers, and each of them reads it there, in place
// where it only folds it. The sender must know when its memory is free again: each staged message
// has a *ticket*, one of a fixed number, and a receiver returns the ticket when it is done. A
// ticket is free when every message that was sent under it has been returned.
//
// A message of the user is copied to a place of its receiver, which no collective and no other
// receiver can take. Place k has ticket k, towards every member: it is free when that member has
// returned it.
//
// Nothing here waits. A sleeper is seen by its header and woken by other means (Doorbell).
// Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory
// collectives", 2008.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/shm/shared_memory.h"
#include "transport/shm/shm_descriptor.h"

namespace q7x2 {

class ShmChannel {
 public:
  static constexpr int kMaxMembers = 128;
  static constexpr int kTickets = HostMessage::kTickets;
  static constexpr int kNoTicket = HostMessage::kNoTicket;
  static constexpr size_t kInlineBytes = HostMessage::kInlineBytes;
  static constexpr size_t kDescriptors = 64;  ///< in a mailbox
  static constexpr size_t kArenaBytes = size_t{16} << 20;
  static constexpr size_t kPlacesBytes = size_t{1} << 20;
  static constexpr size_t kMostPlaces = 16;  ///< for a member
  static constexpr size_t kMostPlaceBytes = size_t{64} << 10;

  using Message = HostMessage;
  /// A piece of this rank's arena.
  struct Staging {
    size_t offset = 0;
    size_t bytes = 0;
  };

  /// Whether a segment can be had without regard to others: it takes memory only as it is used.
  static bool is_cheap(const UcpContext& context);
  /// Allocates this rank's segment. `process`: its identity, by which others know that they mapped
  /// the right memory. `members`: of the host, at least, for all of which there must be room.
  ShmChannel(const UcpContext& context, uint64_t process, int members);
  /// This rank is number `self` among the `members` of the host. To be called once, before what
  /// follows.
  void join(int self, int members);

  /// What other members need to `map` this segment.
  const std::string& key() const { return memory_.key(); }
  /// Maps a member's segment and looks whether it is `process`'s. Throws Error(kTransport).
  void map(int member, const UcpEndpoint& endpoint, std::string_view key, uint64_t process);
  bool is_mapped(int member) const {
    return peers_[static_cast<size_t>(member)].memory.has_value();
  }
  /// Tells `member`, which may or may not have mapped this segment, whether this rank has mapped
  /// its.
  void tell(int member);
  /// Whether `member`, whose segment is mapped, has mapped this one; nothing as long as it has not
  /// told.
  std::optional<bool> told_by(int member) const;
  /// From now on messages to and from `member` pass here.
  void open(int member) { peers_[static_cast<size_t>(member)].open = true; }
  bool is_open(int member) const { return peers_[static_cast<size_t>(member)].open; }
  int members() const { return static_cast<int>(peers_.size()); }

  // Sending.

  /// Whether `send` would find room.
  bool has_room(int member) const {
    const Peer& peer = peers_[static_cast<size_t>(member)];
    return peer.sent - peer.segment().taken[self_].value.load(std::memory_order_acquire) <
           kDescriptors;
  }
  /// False: the mailbox is full, try again later. A message that is staged lies in this rank's
  /// arena, under a ticket that `expect_return` was told of.
  bool send(int member, const Message& message);
  /// One more message to `member` goes under `ticket`.
  void expect_return(int member, int ticket);
  /// One that was told of will not be sent.
  void expect_no_return(int member, int ticket);
  /// True once for each time that `member` has gone to sleep: it must be woken after a send, and
  /// after descriptors were taken from a full mailbox.
  bool must_wake(int member);
  /// The same for each time that `member` has turned away, and must be rung for after a message.
  bool must_ring(int member);

  // Receiving.

  /// Whether `take` would find something.
  bool has_descriptors(int member) const {
    const Peer& peer = peers_[static_cast<size_t>(member)];
    return descriptor(peer).number.load(std::memory_order_acquire) == peer.taken + 1;
  }
  /// The next message from `member`, if there is one. Throws Error(kTransport) where a descriptor
  /// tells of memory that does not exist.
  std::optional<Message> take(int member);
  /// This rank is done with a staged message of `member`.
  void return_ticket(int member, int ticket);
  /// Whether `take` would find something from any member.
  bool has_descriptors() const;
  /// Others must wake this rank from now on, or no more.
  void set_asleep(bool asleep);
  /// From now on this rank looks at its mailboxes by itself.
  void start_polling();
  /// Others must ring for each message from now on, once until this is called again. What they sent
  /// before must be looked for afterwards.
  void stop_polling();
  bool is_polled() const {
    return own().header.turn_epoch.load(std::memory_order_relaxed) % 2 == 0;
  }

  // Staging.

  std::byte* arena() const { return memory_.data() + kArenaOffset; }
  std::optional<Staging> reserve(size_t bytes);
  void free(Staging staging);
  std::optional<int> take_ticket();
  void free_ticket(int ticket) { free_tickets_.push_back(static_cast<uint16_t>(ticket)); }
  /// Nobody holds messages under `ticket` any more.
  bool is_returned(int ticket) const;

  // Places. All ranks of the host have as many, of the same size.

  size_t place_bytes() const { return place_bytes_; }
  int places() const { return places_; }
  /// Number `place` of those for `member`. It is used under ticket `place`.
  std::byte* place(int member, int place) const;
  bool is_free(int member, int place) const {
    const Peer& peer = peers_[static_cast<size_t>(member)];
    const auto ticket = static_cast<size_t>(place);
    return peer.segment().returned[self_][ticket].load(std::memory_order_acquire) ==
           peer.expected[ticket];
  }

 private:
  static constexpr size_t kLine = 64;

  struct alignas(kLine) Header {
    uint64_t magic;
    uint64_t process;
    alignas(kLine) std::atomic<uint32_t> sleep_epoch;
    std::atomic<uint32_t> turn_epoch;  // odd: turned away
  };
  struct alignas(kLine) Count {
    std::atomic<uint32_t> value;
  };
  enum Verdict : uint8_t { kNone, kMapped, kNotMapped };
  using Returned = std::array<std::atomic<uint32_t>, kTickets>;
  using Mailbox = std::array<ShmDescriptor, kDescriptors>;

  struct Segment {
    Header header;
    std::array<std::atomic<uint8_t>, kMaxMembers> verdicts;
    std::array<Count, kMaxMembers> taken;
    std::array<Returned, kMaxMembers> returned;
    std::array<Mailbox, kMaxMembers> mailboxes;
  };
  static constexpr size_t kPage = 4096;
  static constexpr size_t kArenaOffset = (sizeof(Segment) + kPage - 1) / kPage * kPage;
  static constexpr size_t kSharedBytes =
      kArenaBytes + kPlacesBytes;  // that descriptors may tell of
  static constexpr size_t kBytes = kArenaOffset + kSharedBytes;

  struct Peer {
    std::optional<MappedMemory> memory;
    bool open = false;
    uint32_t sent = 0;   // descriptors to it
    uint32_t taken = 0;  // descriptors of its that this rank has taken
    uint32_t woken_epoch = 0;
    uint32_t rung_epoch = 0;
    std::array<uint32_t, kTickets> expected{};  // returns of each ticket, in all

    Segment& segment() const { return *reinterpret_cast<Segment*>(memory->data()); }
  };

  /// Where `peer` writes the next one.
  const ShmDescriptor& descriptor(const Peer& peer) const {
    return peer.segment().mailboxes[self_][peer.taken % kDescriptors];
  }
  Segment& own() const { return *reinterpret_cast<Segment*>(memory_.data()); }
  size_t self_ = 0;
  SharedMemory memory_;
  std::vector<Peer> peers_;     // by member; this rank's own stays empty
  std::vector<Staging> holes_;  // free pieces of the arena, in the order of their offsets
  std::vector<uint16_t> free_tickets_;
  size_t place_bytes_ = 0;
  int places_ = 0;
};

}  // namespace q7x2
