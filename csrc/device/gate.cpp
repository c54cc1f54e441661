#include "device/gate.h"

#include <mutex>
#include <vector>

#include "base/error.h"

namespace q7x2 {
namespace {

struct Flags {
  std::mutex mutex;  // guards the next member
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

Gate::Gate(uint32_t steps)
    : flag_(take_flag()), closed_(std::atomic_ref(*flag_).load()), steps_(steps) {}

Gate::~Gate() {
  open();
}

void Gate::stop(const StreamCalls& calls, void* stream, uint32_t step) {
  check_stream_call(calls.wait_value(stream, flag_, closed_ + step + 1),
                    "a wait of a stream for the host");
}

// The flag only increases, because it may already serve another gate.
void Gate::open(uint32_t steps) noexcept {
  std::atomic_ref flag(*flag_);
  uint32_t now = flag.load();
  while (static_cast<int32_t>(closed_ + steps - now) > 0 &&
         !flag.compare_exchange_weak(now, closed_ + steps)) {
  }
}

// `unused` has room for the flag, because it never exceeds the capacity that add_flags reserved.
void Gate::open() noexcept {
  if (is_open_.exchange(true)) return;
  open(steps_);
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
