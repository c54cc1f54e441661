// A process that is stopped while it writes to another one of its host. UCX's queue of the other
// one then holds a message that is taken but not filled, and UCX has work to do for as long.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "comm.h"
#include "faulting_write.h"
#include "process_state.h"
#include "processor_time.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::buffer;
using test::Comm;
using test::cpu_seconds;
using test::Rank;
using test::run_ranks;

using Clock = std::chrono::steady_clock;

constexpr unsigned kId = 9;
constexpr size_t kSmall = 16;

void* page = nullptr;  // of the message

void stop_and_let_it_be_read(int) {
  ::raise(SIGSTOP);
  ::mprotect(page, test::kFaultingBytes, PROT_READ);
}

/// Writes a message to the worker at `address`, and is stopped when UCX reads it.
void write_and_stop(const std::string& address) {
  page = test::new_page();
  ::signal(SIGSEGV, stop_and_let_it_be_read);
  test::write_and_fault(address, kId, page);
  ::signal(SIGSEGV, SIG_DFL);
}

ucs_status_t count(void* arg, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
  ++*static_cast<std::atomic<int>*>(arg);
  return UCS_OK;
}

/// The share of one processor that this process uses meanwhile.
double share_of_processor(const std::function<void()>& meanwhile) {
  const double before = cpu_seconds();
  const auto begin = Clock::now();
  meanwhile();
  return (cpu_seconds() - before) / std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST(HalfWritten, AWriterThatIsStoppedCostsNoProcessor) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const auto data = buffer<int32_t>(kSmall);
    if (rank.rank == 1) {
      write_and_stop(rank.get(0, "queue"));
      comm.succeed(*comm.send(0, 0, data));
      return;
    }
    std::atomic<int> arrived = 0;
    rank.runtime().reactor().on_message(kId, count, &arrived);
    rank.put("queue", rank.runtime().reactor().worker().address());
    const auto task = comm.receive(1, 0, data);
    while (arrived == 0) std::this_thread::sleep_for(milliseconds(1));
    test::await_state(rank.pid_of(1), 'T');
    EXPECT_LT(share_of_processor(
                  [&] { EXPECT_FALSE(rank.runtime().wait(*task, Clock::now() + seconds(1))); }),
              0.25)
        << "a thread that waits";
    EXPECT_LT(share_of_processor([] { std::this_thread::sleep_for(seconds(1)); }), 0.25)
        << "the runtime's own thread";
    EXPECT_EQ(arrived, 1) << "the second message is half written";
    ::kill(rank.pid_of(1), SIGCONT);
    comm.succeed(*task);
    while (arrived == 1) std::this_thread::sleep_for(milliseconds(1));
  });
}

}  // namespace
}  // namespace q7x2
