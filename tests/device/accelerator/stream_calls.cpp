// What q7x2 asks of the stand-in accelerator's streams, and how a test breaks it on purpose.
#include "stream_calls.h"

#include <atomic>
#include <thread>

#include "device/stream_calls.h"
#include "stream.h"

namespace accelerator {
namespace {

constexpr std::chrono::microseconds kBetweenLooks{20};

std::atomic<LeftOut> left_out{LeftOut::kNothing};

Queue& queue_at(void* stream) {
  return *static_cast<Queue*>(stream);
}

int wait_value(void* stream, const uint32_t* flag, uint32_t value) {
  if (is_left_out(LeftOut::kGate)) return 0;
  queue_at(stream).enqueue([flag = const_cast<uint32_t*>(flag), value] {
    while (static_cast<int32_t>(std::atomic_ref(*flag).load() - value) < 0 ||
           is_left_out(LeftOut::kOpening)) {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  });
  return 0;
}

int call_host(void* stream, void (*call)(void*), void* argument) {
  queue_at(stream).enqueue([=] { call(argument); });
  return 0;
}

int is_capturing(void* stream, int* answer) {
  *answer = queue_at(stream).is_capturing ? 1 : 0;
  return 0;
}

constexpr Q7x2StreamCalls kCalls{sizeof(Q7x2StreamCalls), &wait_value, &call_host, &is_capturing};

}  // namespace

const void* stream_calls() {
  return &kCalls;
}

void leave_out(LeftOut what) {
  left_out = what;
}

bool is_left_out(LeftOut what) {
  return left_out == what;
}

}  // namespace accelerator
