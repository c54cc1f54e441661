#include "transport/peer/control_plane.h"

#include <cstring>
#include <new>
#include <utility>

#include "transport/stream/stream_lane.h"

namespace q7x2 {
namespace {

constexpr unsigned kControlId = 0;
constexpr unsigned kWakeId = 1;
constexpr unsigned kRingId = 4;  // BootstrapTable has 2, QueueWatch has 3

Envelopes::Kind kind_on(Wire wire) {
  return wire == Wire::kPrivate ? Envelopes::Kind::kPrivate : Envelopes::Kind::kControl;
}

}  // namespace

ControlPlane::ControlPlane(Reactor& reactor, Envelopes& envelopes)
    : reactor_(reactor), envelopes_(envelopes) {
  reactor_.on_message(kControlId, on_control, this);
  reactor_.on_private_message(kControlId, on_private_control, this);
  reactor_.on_message(kWakeId, on_wake, this);
  reactor_.on_message(kRingId, on_ring, this);
  if (StreamLane* const lane = reactor_.streams()) {
    lane->on_notice(kControlId, [this](const StreamNotice& notice) { take(notice); });
  }
  rung_.reserve(tag::kMaxGroups);
}

void ControlPlane::send(Locked& locked, Peer& peer, const Control& control, Wire wire) {
  if (wire == Wire::kStream) {
    if (peer.stream != nullptr)
      reactor_.streams()->notify(*peer.stream, kControlId, control.encode());
    return;
  }
  const Link& link = peer.link(wire);
  if (!link.is_open()) return;
  reactor_.send_message(locked, link.endpoint(), kControlId,
                        envelopes_.close(kind_on(wire), peer.info.identity(), control.encode()));
}

void ControlPlane::wake(Locked& locked, Peer& peer) {
  reactor_.send_message(locked, peer.shared.endpoint(), kWakeId, {});
}

void ControlPlane::notify(Locked& locked, Peer& peer, uint16_t slot) {
  std::string bytes(sizeof(slot), '\0');
  std::memcpy(bytes.data(), &slot, sizeof(slot));
  reactor_.send_message(locked, peer.shared.endpoint(), kRingId, std::move(bytes));
}

std::vector<uint16_t> ControlPlane::take_rung(Locked&) {
  if (rung_.empty()) return {};
  std::vector<uint16_t> rung(rung_);  // a copy, so that `rung_` keeps its capacity
  rung_.clear();
  is_rung_.reset();
  return rung;
}

std::vector<Control> ControlPlane::take_arrived(Locked&) {
  return std::exchange(arrived_, {});
}

bool ControlPlane::take_lost(Locked&) {
  return std::exchange(lost_, false);
}

void ControlPlane::take(Wire wire, const void* header, size_t length) {
  try {
    const auto opened = envelopes_.open(kind_on(wire), {static_cast<const char*>(header), length});
    if (opened) add(opened->sender, opened->message, wire, StreamNotice::Turn::kInOrder);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

void ControlPlane::take(const StreamNotice& notice) {
  try {
    add(notice.process, notice.text, Wire::kStream, notice.turn);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

void ControlPlane::add(uint64_t sender, std::string_view bytes, Wire wire,
                       StreamNotice::Turn turn) {
  if (auto control = Control::decode(sender, bytes)) {
    control->wire = wire;
    control->turn = turn;
    arrived_.push_back(std::move(*control));
  }
}

ucs_status_t ControlPlane::on_control(void* arg, const void* header, size_t header_length, void*,
                                      size_t, const ucp_am_recv_param_t*) {
  static_cast<ControlPlane*>(arg)->take(Wire::kShared, header, header_length);
  return UCS_OK;
}

ucs_status_t ControlPlane::on_private_control(void* arg, const void* header, size_t header_length,
                                              void*, size_t, const ucp_am_recv_param_t*) {
  static_cast<ControlPlane*>(arg)->take(Wire::kPrivate, header, header_length);
  return UCS_OK;
}

// The arrival itself is the message: the thread that slept polls the shared memory next.
ucs_status_t ControlPlane::on_wake(void*, const void*, size_t, void*, size_t,
                                   const ucp_am_recv_param_t*) {
  return UCS_OK;
}

ucs_status_t ControlPlane::on_ring(void* arg, const void* header, size_t header_length, void*,
                                   size_t, const ucp_am_recv_param_t*) {
  auto& plane = *static_cast<ControlPlane*>(arg);
  uint16_t slot = tag::kMaxGroups;
  if (header_length == sizeof(slot)) std::memcpy(&slot, header, sizeof(slot));
  if (slot < tag::kMaxGroups && !plane.is_rung_[slot]) {
    plane.is_rung_.set(slot);
    plane.rung_.push_back(slot);  // has capacity for all slots
  }
  return UCS_OK;
}

}  // namespace q7x2
