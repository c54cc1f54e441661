#include "device/gate.h"

#include <mutex>
#include <vector>

#include "base/error.h"

namespace q7x2 {
namespace {

struct Flags {
  std::mutex mutex;  // guards the next
  std::vector<uint32_t*> unused;
};

Flags& flags() {
  static auto* const of_process = new Flags();
  return *of_process;
}

uint32_t* take_flag() {
  const std::lock_guard lock(flags().mutex);
  if (flags().unused.empty()) throw Error(ErrorCode::kInternal, "there is no flag for a gate");
  uint32_t* const flag = flags().unused.back();
  flags().unused.pop_back();
  return flag;
}

}  // namespace

Gate::Gate() : flag_(take_flag()), value_(std::atomic_ref(*flag_).load() + 1) {}

Gate::~Gate() {
  open();
}

void Gate::stop(const StreamCalls& calls, void* stream) {
  check_stream_call(calls.wait_value(stream, flag_, value_), "a wait of a stream for the host");
}

// Room for the flag is there: `unused` never grows beyond what add_flags reserved.
void Gate::open() noexcept {
  if (is_open_.exchange(true)) return;
  std::atomic_ref(*flag_).store(value_);
  const std::lock_guard lock(flags().mutex);
  flags().unused.push_back(flag_);
}

bool Gate::has_flag() {
  const std::lock_guard lock(flags().mutex);
  return !flags().unused.empty();
}

void Gate::add_flags(std::byte* memory, size_t count) {
  static size_t total = 0;
  const std::lock_guard lock(flags().mutex);
  total += count;
  flags().unused.reserve(total);
  for (size_t i = 0; i < count; ++i) {
    auto* const flag = reinterpret_cast<uint32_t*>(memory + i * kFlagBytes);
    *flag = 0;
    flags().unused.push_back(flag);
  }
}

}  // namespace q7x2
