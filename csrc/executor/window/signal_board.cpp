#include "executor/window/signal_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace q7x2 {

// A signal first counts and then looks for waiters; a waiter first announces itself and then looks
// at the count. So one of them sees the other.
void SignalBoard::signal(int rank) {
  counts_[rank].fetch_add(1, std::memory_order_seq_cst);
  if (head_.waiters.load(std::memory_order_seq_cst) == 0) return;
  head_.news.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &head_.news, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SignalBoard::sleep(int rank, uint64_t count, std::chrono::milliseconds limit) {
  head_.waiters.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t news = head_.news.load(std::memory_order_seq_cst);
  if (counts_[rank].load(std::memory_order_seq_cst) < count) {
    const timespec time{static_cast<time_t>(limit.count() / 1000),
                        static_cast<long>(limit.count() % 1000) * 1'000'000};
    syscall(SYS_futex, &head_.news, FUTEX_WAIT, news, &time, nullptr, 0);
  }
  head_.waiters.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace q7x2
