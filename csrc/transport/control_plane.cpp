#include "transport/control_plane.h"

#include <new>
#include <string_view>
#include <utility>

namespace q7x2 {
namespace {

constexpr unsigned kControlId = 0;
constexpr unsigned kWakeId = 1;

}  // namespace

ControlPlane::ControlPlane(Reactor& reactor, Envelopes& envelopes)
    : reactor_(reactor), envelopes_(envelopes) {
  reactor_.on_message(kControlId, on_control, this);
  reactor_.on_message(kWakeId, on_wake, this);
}

void ControlPlane::send(Locked& locked, Peer& peer, const Control& control) {
  if (peer.shared.is_open()) {
    reactor_.send_message(
        locked, peer.shared.endpoint(), kControlId,
        envelopes_.close(Envelopes::Kind::kControl, peer.card.identity(), control.encode()));
  }
}

void ControlPlane::wake(Locked& locked, Peer& peer) {
  reactor_.send_message(locked, peer.shared.endpoint(), kWakeId, {});
}

std::vector<Control> ControlPlane::take_arrived(Locked&) {
  return std::exchange(arrived_, {});
}

bool ControlPlane::take_lost(Locked&) {
  return std::exchange(lost_, false);
}

ucs_status_t ControlPlane::on_control(void* arg, const void* header, size_t header_length, void*,
                                      size_t, const ucp_am_recv_param_t*) {
  auto& plane = *static_cast<ControlPlane*>(arg);
  try {
    const std::string_view bytes(static_cast<const char*>(header), header_length);
    const auto opened = plane.envelopes_.open(Envelopes::Kind::kControl, bytes);
    if (!opened) {
      return UCS_OK;
    }
    if (auto control = Control::decode(opened->sender, opened->message)) {
      plane.arrived_.push_back(std::move(*control));
    }
  } catch (const std::bad_alloc&) {
    plane.lost_ = true;
  }
  return UCS_OK;
}

// That it came is all: whoever slept looks at the shared memory next.
ucs_status_t ControlPlane::on_wake(void*, const void*, size_t, void*, size_t,
                                   const ucp_am_recv_param_t*) {
  return UCS_OK;
}

}  // namespace q7x2
