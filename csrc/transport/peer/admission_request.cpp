#include "transport/peer/admission_request.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/net/connection_attempt.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kPause{20};

}  // namespace

AdmissionRequests::AdmissionRequests(uint64_t process, const std::vector<HeartbeatTarget>& targets,
                                     TimePoint now)
    : process_(process), give_up_(now + kPatience) {
  for (const HeartbeatTarget& target : targets) {
    Request request;
    request.target = target;
    request.is_over = target.endpoint.port == 0;
    requests_.push_back(std::move(request));
  }
}

bool AdmissionRequests::poll(TimePoint now) {
  for (Request& request : requests_) {
    if (!request.is_over) advance(request, now);
  }
  return now >= give_up_ || std::ranges::all_of(requests_, &Request::is_over);
}

void AdmissionRequests::advance(Request& request, TimePoint now) const {
  if (!request.line.is_valid()) {
    if (now < request.next_call) return;
    request.line = start_connecting(request.target.endpoint);
    request.next_call = now + kPause;
    request.was_sent = false;
    return;
  }
  const auto call_again = [&] { request.line.close(); };
  if (!request.was_sent) {
    switch (outcome(request.line)) {
      case Attempt::kPending:
        return;
      case Attempt::kRefused:
      case Attempt::kFailed:
        call_again();
        return;
      case Attempt::kMade:
        break;
    }
    request.was_sent = say_call(request.line, process_, request.target).has_value();
    if (!request.was_sent) call_again();
    return;
  }
  char byte = 0;
  const ssize_t count = ::recv(request.line, &byte, 1, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  request.line.close();
  request.is_over = count == 0;
}

}  // namespace q7x2
