// ShmChannel: the messages of one group between ranks of one host, through memory that they all
// map.
//
// Each member owns a segment; only the owner writes it, and the others read it:
//
//   header      who owns it, and whether the owner sleeps (odd) or is awake (even)
//   verdicts    per member: whether the owner has mapped that member's segment
//   taken       per member: number of that member's descriptors that the owner has taken
//   returned    per member and ticket: number of its messages that the owner has finished with
//   mailboxes   per member: a ring of descriptors to it, each one cache line
//   arena       bytes that are too many for a descriptor
//   places      the same for messages of the user, with the same number of places per member
//
// A descriptor carries up to 40 bytes itself: a tiny message costs one cache line. A longer message
// is copied into the arena once for all its receivers, and each of them reads it there. A receiver
// that only reduces it makes no copy. The sender must know when its memory is free again: each
// staged message has a *ticket*, one of a fixed number, and a receiver returns the ticket when it
// has finished. A ticket is free when every message that was sent under it has been returned.
//
// A message of the user is copied to a place reserved for its receiver, which no collective and no
// other receiver can use. Place k uses ticket k for each member: it is free when that member has
// returned it.
//
// Nothing here waits. A sender sees in the header that a member sleeps, and wakes it by other means
// (Doorbell).
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
  static constexpr size_t kDescriptors = 64;  ///< per mailbox
  static constexpr size_t kArenaBytes = size_t{16} << 20;
  static constexpr size_t kPlacesBytes = size_t{1} << 20;
  static constexpr size_t kMostPlaces = 16;  ///< per member
  static constexpr size_t kMostPlaceBytes = size_t{64} << 10;

  using Message = HostMessage;
  /// A part of this rank's arena.
  struct Staging {
    size_t offset = 0;
    size_t bytes = 0;
  };

  /// Whether a segment takes memory only as it is used. If so, it can be allocated before it is
  /// known how many other ranks need one.
  static bool is_cheap(const UcpContext& context);
  /// Allocates this rank's segment. `process`: number of this process, by which others check that
  /// they mapped the right memory. `members`: lower bound of the number of ranks on the host; there
  /// must be room for the segments of all of them.
  ShmChannel(const UcpContext& context, uint64_t process, int members);
  /// This rank is number `self` among the `members` of the host. To be called once, before the
  /// following functions.
  void join(int self, int members);

  /// The bytes that other members need to `map` this segment.
  const std::string& key() const { return memory_.key(); }
  /// Maps a member's segment and checks that it belongs to `process`. Throws Error(kTransport).
  void map(int member, const UcpEndpoint& endpoint, std::string_view key, uint64_t process);
  bool is_mapped(int member) const {
    return peers_[static_cast<size_t>(member)].memory.has_value();
  }
  /// Tells `member` whether this rank has mapped its segment. It need not have mapped this segment
  /// yet.
  void tell(int member);
  /// Whether `member`, whose segment is mapped, has mapped this one; empty until it has told so.
  std::optional<bool> told_by(int member) const;
  /// From now on messages to and from `member` go through this channel.
  void open(int member) { peers_[static_cast<size_t>(member)].open = true; }
  bool is_open(int member) const { return peers_[static_cast<size_t>(member)].open; }
  int members() const { return static_cast<int>(peers_.size()); }

  // Sending.

  /// Whether `send` has room.
  bool has_room(int member) const {
    const Peer& peer = peers_[static_cast<size_t>(member)];
    return peer.sent - peer.segment().taken[self_].value.load(std::memory_order_acquire) <
           kDescriptors;
  }
  /// Returns false if the mailbox is full; try again later. A staged message must be in this rank's
  /// arena, under a ticket that was passed to `expect_return`.
  bool send(int member, const Message& message);
  /// One more message to `member` will be sent under `ticket`.
  void expect_return(int member, int ticket);
  /// A message that was announced by `expect_return` will not be sent.
  void expect_no_return(int member, int ticket);
  /// Returns true once each time `member` has gone to sleep. Then it must be woken, after a send
  /// and after descriptors were taken from a full mailbox.
  bool must_wake(int member);
  /// Returns true once each time `member` has stopped polling. Then it must be rung after a
  /// message.
  bool must_ring(int member);

  // Receiving.

  /// Whether `take` has a message.
  bool has_descriptors(int member) const {
    const Peer& peer = peers_[static_cast<size_t>(member)];
    return descriptor(peer).number.load(std::memory_order_acquire) == peer.taken + 1;
  }
  /// The next message from `member`, if there is one. Throws Error(kTransport) if its descriptor
  /// refers to memory that does not exist.
  std::optional<Message> take(int member);
  /// This rank has finished with a staged message of `member`.
  void return_ticket(int member, int ticket);
  /// Whether `take` has a message from any member.
  bool has_descriptors() const;
  /// Says whether others must wake this rank from now on.
  void set_asleep(bool asleep);
  /// From now on this rank polls its mailboxes.
  void start_polling();
  /// From now on others must ring after a message; each of them rings once until this is called
  /// again. The caller must then check for messages that were sent before.
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
  /// Whether all messages that were sent under `ticket` have been returned.
  bool is_returned(int ticket) const;

  // Places. All ranks of the host have the same number, of the same size.

  size_t place_bytes() const { return place_bytes_; }
  int places() const { return places_; }
  /// Place number `place` for `member`. It is used under ticket `place`.
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
    std::atomic<uint32_t> turn_epoch;  // odd: not polling
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
      kArenaBytes + kPlacesBytes;  // the memory that descriptors may refer to
  static constexpr size_t kBytes = kArenaOffset + kSharedBytes;

  struct Peer {
    std::optional<MappedMemory> memory;
    bool open = false;
    uint32_t sent = 0;   // descriptors sent to it
    uint32_t taken = 0;  // its descriptors that this rank has taken
    uint32_t woken_epoch = 0;
    uint32_t rung_epoch = 0;
    std::array<uint32_t, kTickets> expected{};  // total returns per ticket

    Segment& segment() const { return *reinterpret_cast<Segment*>(memory->data()); }
  };

  /// Where `peer` writes its next descriptor.
  const ShmDescriptor& descriptor(const Peer& peer) const {
    return peer.segment().mailboxes[self_][peer.taken % kDescriptors];
  }
  Segment& own() const { return *reinterpret_cast<Segment*>(memory_.data()); }
  size_t self_ = 0;
  SharedMemory memory_;
  std::vector<Peer> peers_;     // by member; this rank's entry stays empty
  std::vector<Staging> holes_;  // free parts of the arena, ordered by offset
  std::vector<uint16_t> free_tickets_;
  size_t place_bytes_ = 0;
  int places_ = 0;
};

}  // namespace q7x2
