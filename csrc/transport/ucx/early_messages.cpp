#include "transport/ucx/early_messages.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace q7x2 {

void EarlyMessages::take_from(UcpWorker& worker) {
  for (;;) {
    ucp_tag_recv_info_t info{};
    if (ucp_tag_probe_nb(worker.get(), 0, 0, /*remove=*/0, &info) == nullptr) {
      return;
    }
    const Place place = messages_.emplace(messages_.end());
    Message& message = *place;
    message.bytes.reset(new (std::nothrow) std::byte[std::max<size_t>(info.length, 1)]);
    if (!message.bytes) {
      messages_.erase(place);
      return;
    }
    message.owner = this;
    message.place = place;
    message.tag = info.sender_tag;
    message.length = info.length;
    // The probe finds the oldest one again.
    ucp_tag_message_h handle = ucp_tag_probe_nb(worker.get(), 0, 0, /*remove=*/1, &info);
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = on_received;
    param.user_data = &message;
    void* request =
        ucp_tag_msg_recv_nbx(worker.get(), message.bytes.get(), message.length, handle, &param);
    if (UCS_PTR_IS_ERR(request)) {
      message.status = UCS_PTR_STATUS(request);
    } else if (message.status == UCS_INPROGRESS) {
      message.request = request;
    }
  }
}

void EarlyMessages::on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t*,
                                void* user_data) {
  Message& message = *static_cast<Message*>(user_data);
  message.request = nullptr;
  message.status = status;
  ucp_request_free(request);
  if (message.is_dropped) {
    message.owner->messages_.erase(message.place);
  } else if (message.pending != nullptr) {
    message.pending->request = nullptr;
    message.owner->hand_over(message.place);
  }
}

bool EarlyMessages::receive(PendingRequest& pending, uint64_t tag, uint64_t mask, void* data,
                            size_t length) {
  const Place place = oldest(tag, mask);
  if (place == messages_.end()) {
    return false;
  }
  place->pending = &pending;
  place->data = data;
  place->room = length;
  if (place->status == UCS_INPROGRESS) {
    pending.request = place->request;
  } else {
    hand_over(place);
  }
  return true;
}

bool EarlyMessages::has(const PendingRequest& pending) const {
  return std::ranges::any_of(messages_,
                             [&](const Message& message) { return message.pending == &pending; });
}

bool EarlyMessages::cancel(PendingRequest& pending) {
  const auto place = std::find_if(messages_.begin(), messages_.end(), [&](const Message& message) {
    return message.pending == &pending;
  });
  if (place == messages_.end()) {
    return false;
  }
  place->pending = nullptr;
  place->is_dropped = true;
  pending.request = nullptr;
  pending.completions->add(pending, UCS_ERR_CANCELED);
  return true;
}

std::optional<uint64_t> EarlyMessages::find(uint64_t tag, uint64_t mask) const {
  const Place place = const_cast<EarlyMessages*>(this)->oldest(tag, mask);
  return place == messages_.end() ? std::nullopt : std::optional(place->tag);
}

void EarlyMessages::drop(uint64_t tag, uint64_t mask) {
  for (Place place = messages_.begin(); place != messages_.end();) {
    const Place message = place++;
    if (((message->tag ^ tag) & mask) != 0 || message->pending != nullptr) {
      continue;
    }
    message->is_dropped = true;
    if (message->status != UCS_INPROGRESS) {
      messages_.erase(message);
    }
  }
}

EarlyMessages::Place EarlyMessages::oldest(uint64_t tag, uint64_t mask) {
  return std::find_if(messages_.begin(), messages_.end(), [&](const Message& message) {
    return ((message.tag ^ tag) & mask) == 0 && message.pending == nullptr && !message.is_dropped;
  });
}

void EarlyMessages::hand_over(Place place) {
  const size_t taken = std::min(place->length, place->room);
  if (taken > 0) {
    std::memcpy(place->data, place->bytes.get(), taken);
  }
  const bool is_cut = place->status == UCS_OK && place->length > place->room;
  PendingRequest& pending = *place->pending;
  pending.completions->add(pending, is_cut ? UCS_ERR_MESSAGE_TRUNCATED : place->status,
                           place->length, place->tag);
  messages_.erase(place);
}

}  // namespace q7x2
