#include "transport/shm/shm_channel.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/quirks/shared_memory_limits.h"

namespace q7x2 {
namespace {

constexpr uint64_t kMagic = 0x32306c6832783771;  // "q7x2hl02"

// Per member, so that it can read one place while this rank writes the next.
constexpr size_t kFewestPlaces = 4;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// UCX writes a segment in /dev/shm from end to end, so that no page can be missing later. If there
// is no room for the segments of all ranks, none is allocated.
size_t checked_size(const UcpContext& context, size_t bytes, int members) {
  if (!segments_fit(context.transports(), bytes, members)) {
    throw Error(ErrorCode::kTransport, "there is no shared memory for " + std::to_string(members) +
                                           " segments of " + std::to_string(bytes) + " bytes");
  }
  return bytes;
}

/// Whether a member has gone to sleep, or stopped polling, since it was last woken or rung.
bool is_odd_and_new(const std::atomic<uint32_t>& epoch, uint32_t& seen) {
  // The descriptor is written before this load; the sleeper sets its flag before its own last
  // check.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t now = epoch.load(std::memory_order_relaxed);
  if (now % 2 == 0 || now == seen) {
    return false;
  }
  seen = now;
  return true;
}

}  // namespace

bool ShmChannel::is_cheap(const UcpContext& context) {
  return sysv_fits(context.transports(), kBytes);
}

ShmChannel::ShmChannel(const UcpContext& context, uint64_t process, int members)
    : memory_(context, checked_size(context, kBytes, members)), holes_{{0, kArenaBytes}} {
  own().header.magic = kMagic;
  own().header.process = process;
  own().header.turn_epoch = 1;
}

void ShmChannel::join(int self, int members) {
  self_ = static_cast<size_t>(self);
  peers_.resize(static_cast<size_t>(members));
  if (members > 1) {
    const size_t bytes = kPlacesBytes / static_cast<size_t>(members - 1);
    place_bytes_ = std::min(bytes / kFewestPlaces / kLine * kLine, kMostPlaceBytes);
    places_ = static_cast<int>(std::min(bytes / place_bytes_, kMostPlaces));
  }
  for (int ticket = kTickets; ticket-- > places_;) {
    free_ticket(ticket);
  }
}

void ShmChannel::map(int member, const UcpEndpoint& endpoint, std::string_view key,
                     uint64_t process) {
  Peer& peer = peers_[static_cast<size_t>(member)];
  peer.memory.emplace(endpoint, key, kBytes);
  const Header& header = peer.segment().header;
  if (header.magic != kMagic || header.process != process) {
    peer.memory.reset();
    throw Error(ErrorCode::kTransport, "the memory that was mapped is not the peer's");
  }
}

void ShmChannel::tell(int member) {
  own().verdicts[static_cast<size_t>(member)].store(is_mapped(member) ? kMapped : kNotMapped,
                                                    std::memory_order_release);
}

std::optional<bool> ShmChannel::told_by(int member) const {
  const Peer& peer = peers_[static_cast<size_t>(member)];
  const uint8_t verdict = peer.segment().verdicts[self_].load(std::memory_order_acquire);
  return verdict == kNone ? std::nullopt : std::optional(verdict == kMapped);
}

bool ShmChannel::send(int member, const Message& message) {
  if (!has_room(member)) {
    return false;
  }
  Peer& peer = peers_[static_cast<size_t>(member)];
  ShmDescriptor& descriptor =
      own().mailboxes[static_cast<size_t>(member)][peer.sent++ % kDescriptors];
  descriptor.write(message, arena());
  descriptor.number.store(peer.sent, std::memory_order_release);
  return true;
}

void ShmChannel::expect_return(int member, int ticket) {
  ++peers_[static_cast<size_t>(member)].expected[static_cast<size_t>(ticket)];
}

void ShmChannel::expect_no_return(int member, int ticket) {
  --peers_[static_cast<size_t>(member)].expected[static_cast<size_t>(ticket)];
}

bool ShmChannel::must_wake(int member) {
  Peer& peer = peers_[static_cast<size_t>(member)];
  return is_odd_and_new(peer.segment().header.sleep_epoch, peer.woken_epoch);
}

bool ShmChannel::must_ring(int member) {
  Peer& peer = peers_[static_cast<size_t>(member)];
  return is_odd_and_new(peer.segment().header.turn_epoch, peer.rung_epoch);
}

bool ShmChannel::has_descriptors() const {
  for (int member = 0; member < members(); ++member) {
    if (is_open(member) && has_descriptors(member)) return true;
  }
  return false;
}

std::optional<ShmChannel::Message> ShmChannel::take(int member) {
  if (!has_descriptors(member)) {
    return std::nullopt;
  }
  Peer& peer = peers_[static_cast<size_t>(member)];
  const Message message = descriptor(peer).read(peer.memory->data() + kArenaOffset, kSharedBytes);
  own().taken[static_cast<size_t>(member)].value.store(++peer.taken, std::memory_order_release);
  return message;
}

void ShmChannel::return_ticket(int member, int ticket) {
  std::atomic<uint32_t>& count =
      own().returned[static_cast<size_t>(member)][static_cast<size_t>(ticket)];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void ShmChannel::set_asleep(bool asleep) {
  std::atomic<uint32_t>& epoch = own().header.sleep_epoch;
  const uint32_t now = epoch.load(std::memory_order_relaxed);
  if ((now % 2 == 1) == asleep) {
    return;
  }
  epoch.store(now + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void ShmChannel::start_polling() {
  std::atomic<uint32_t>& epoch = own().header.turn_epoch;
  // A sender that does not see this yet rings once more.
  if (!is_polled())
    epoch.store(epoch.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void ShmChannel::stop_polling() {
  std::atomic<uint32_t>& epoch = own().header.turn_epoch;
  epoch.store(epoch.load(std::memory_order_relaxed) + (is_polled() ? 1 : 2),
              std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::byte* ShmChannel::place(int member, int place) const {
  const size_t number = static_cast<size_t>(member) - (static_cast<size_t>(member) > self_ ? 1 : 0);
  const size_t index = number * static_cast<size_t>(places_) + static_cast<size_t>(place);
  return arena() + kArenaBytes + index * place_bytes_;
}

std::optional<ShmChannel::Staging> ShmChannel::reserve(size_t bytes) {
  // The first hole that is large enough: the memory used last is at the front, and in the cache.
  const size_t rounded = round_up(bytes, kPage);
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->bytes < rounded) {
      continue;
    }
    const Staging staging{hole->offset, rounded};
    hole->offset += rounded;
    hole->bytes -= rounded;
    if (hole->bytes == 0) {
      holes_.erase(hole);
    }
    return staging;
  }
  return std::nullopt;
}

void ShmChannel::free(Staging staging) {
  const auto next =
      std::lower_bound(holes_.begin(), holes_.end(), staging.offset,
                       [](const Staging& hole, size_t offset) { return hole.offset < offset; });
  auto hole = holes_.insert(next, staging);
  if (const auto after = hole + 1;
      after != holes_.end() && hole->offset + hole->bytes == after->offset) {
    hole->bytes += after->bytes;
    holes_.erase(after);
  }
  if (hole != holes_.begin()) {
    if (const auto before = hole - 1; before->offset + before->bytes == hole->offset) {
      before->bytes += hole->bytes;
      holes_.erase(hole);
    }
  }
}

std::optional<int> ShmChannel::take_ticket() {
  if (free_tickets_.empty()) {
    return std::nullopt;
  }
  const int ticket = free_tickets_.back();
  free_tickets_.pop_back();
  return ticket;
}

bool ShmChannel::is_returned(int ticket) const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    const auto i = static_cast<size_t>(ticket);
    return !peer.open ||
           peer.segment().returned[self_][i].load(std::memory_order_acquire) == peer.expected[i];
  });
}

}  // namespace q7x2
